"""Jobs and pods in the stand-in of a Kubernetes server."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tools.jobs.kubernetes.eks_jobs_made import IMAGE, RUN
from tests.tools.kubernetes_api import Objects

SPACE = "hyperpod-training"
KINDS = {"hyperpod": "hyperpodpytorchjobs", "kubeflow": "pytorchjobs"}
Run = Callable[..., tuple[int, str]]


def submit(run: Run, *arguments: str, **options: Any) -> str:
    """Returns the job's name."""
    stage = arguments[0] if arguments else "train"
    config = [] if stage == "bandwidth" else ["--config", str(RUN)]
    status, said = run("submit", stage, *config, "--image", IMAGE, *arguments[1:], **options)
    assert status == 0, said
    return dict(line.split(maxsplit=1) for line in said.splitlines())["job"]


_SUBMITTED: dict[str, dict[tuple[str, str, str], dict[str, Any]]] = {}


def submitted(objects: Objects, run: Run, cluster: str | Path = "eks") -> str:
    """Return the name of a job that is submitted once for each cluster, for tests of what follows."""
    key = Path(cluster).stem
    if key not in _SUBMITTED:
        before = set(objects.kept)
        submit(run, cluster=cluster)
        _SUBMITTED[key] = copy.deepcopy({k: v for k, v in objects.kept.items() if k not in before})
    objects.kept.update(copy.deepcopy(_SUBMITTED[key]))
    (name,) = (name for kind, _, name in _SUBMITTED[key] if kind in KINDS.values())
    return name


def add_pod(
    objects: Objects, job: str, log: str, *, number: int = 0, phase: str = "Running"
) -> str:
    name = f"{job}-pods-{number}"
    objects.add(
        "pods",
        SPACE,
        name,
        metadata={"labels": {"esm2/job": job}},
        spec={"nodeName": "hyperpod-i-0123", "containers": [{"name": "train", "image": IMAGE}]},
        status={"phase": phase},
    )
    objects.logs[name] = log
    return name
