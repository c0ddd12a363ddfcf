"""Jobs of Kubernetes as the tools make them, of the shipped cluster files and of changed ones."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from config.eks_cluster import EksCluster
from seqlm.launch.kubernetes_job import job_manifest
from seqlm.launch.pod_job import PodJob
from seqlm.runs.run_file import load_config
from tests.job_schemas.validation import pod_templates
from tools.jobs.kubernetes.jobs import pod_job
from tools.jobs.kubernetes.placement import EksWanted
from tools.jobs.work import NamedRun

CLUSTERS = Path(__file__).parents[4] / "clusters"
RUN = Path("workloads/seqlm/configs/esm2_8m_sample.yaml")
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/esm2-eks/training@sha256:" + "5a" * 32


@cache
def _document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CLUSTERS / f"{name}.yaml").read_text())
    return found


def shipped(name: str = "eks", **changes: Any) -> EksCluster:
    """``clusters/<name>.yaml`` with top-level fields replaced."""
    return EksCluster.model_validate(copy.deepcopy(_document(name)) | changes)


def with_group(cluster: EksCluster, group_name: str, **changes: Any) -> EksCluster:
    """The cluster with fields of one group replaced."""
    groups = [
        group.model_copy(update=changes) if group.name == group_name else group
        for group in cluster.instance_groups
    ]
    return cluster.model_copy(update={"instance_groups": groups})


def made(
    *overrides: str, stage: str = "train", cluster: EksCluster | None = None, **wanted: Any
) -> PodJob:
    cluster = cluster or shipped()
    options = EksWanted(**{"stage": stage, "image": IMAGE, **wanted})
    run = None if stage == "bandwidth" else NamedRun(load_config(RUN, overrides), RUN.read_text())
    return pod_job(cluster, run, list(overrides), options, version="abc")


def pod(job: PodJob) -> dict[str, Any]:
    """Return the template of its pods."""
    return dict(pod_templates(job_manifest(job))[0]["spec"])
