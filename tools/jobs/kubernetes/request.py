"""A job of Kubernetes from a run file and a cluster file.

Everything that can be known to be wrong is told here, before the cluster is asked for anything.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from pathlib import PurePosixPath

from config.eks_cluster import EksCluster
from config.resource_names import JOB_SERVICE_ACCOUNT, LUSTRE_CLAIM, TRAINING_UID, job_namespaces
from tools.jobs.bandwidth import bandwidth_of, bandwidth_run
from tools.jobs.checks import listed, output_of, overrides_of, run_problems
from tools.jobs.kubernetes.placement import (
    EksWanted,
    Placement,
    is_shared,
    node_labels,
    placement,
    queue_names,
    tolerations,
)
from workloads.launch.pod_job import PodJob
from workloads.run_file import RunFile
from workloads.stages import STAGES

MAX_NAME = 40
"""Operators append to a job's name, and the result is a label with 63 characters at most."""
MAX_LABEL = 63
LONGEST_STAGE = max(map(len, STAGES))


def pod_job(
    cluster: EksCluster,
    config: RunFile,
    config_text: str,
    overrides: Sequence[str],
    wanted: EksWanted,
    *,
    version: str,
) -> PodJob:
    """A stage of a run, as a job with a name of its own.

    Raises:
        ValueError: listing all that does not fit together.
    """
    problems: list[str] = []
    place = placement(cluster, wanted, problems)
    output = output_of(config, wanted.stage, place.folder, problems)
    problems += run_problems(
        config,
        wanted,
        place,
        place.folder,
        lambda path: is_shared(cluster, path),
        who="pods",
        where=cluster.storage.lustre.mount_path,
    )
    if problems:
        raise ValueError(listed(problems))
    return _job(
        cluster,
        wanted,
        place,
        version=version,
        run=config.name,
        run_dir=str(PurePosixPath(place.folder) / config.run_dir),
        output=output,
        config=config_text,
        overrides=overrides_of(config, overrides, output),
    )


def bandwidth_job(cluster: EksCluster, settings: Sequence[str], wanted: EksWanted, *, version: str) -> PodJob:
    """A job that measures all-reduces; ``settings`` are ``at_least=<GB/s>``, or nothing.

    Raises:
        ValueError: listing all that does not fit together.
    """
    problems: list[str] = []
    place = placement(cluster, wanted, problems)
    expected = bandwidth_of(place, settings, problems)
    if problems:
        raise ValueError(listed(problems))
    run = bandwidth_run(place.hardware)
    return _job(
        cluster,
        wanted,
        place,
        version=version,
        run=run,
        run_dir=str(PurePosixPath(place.folder) / "runs" / run),
        output="",
        config=expected.text(),
        overrides=(),
    )


def _job(
    cluster: EksCluster,
    wanted: EksWanted,
    place: Placement,
    *,
    version: str,
    run: str,
    run_dir: str,
    output: str,
    config: str,
    overrides: tuple[str, ...],
) -> PodJob:
    cpus, memory_gib = place.share(wanted.stage)
    queue, priority = queue_names(place.team, place.priority)
    return PodJob(
        name=_job_name(wanted.stage, _slug(run)),
        namespace=place.namespace,
        operator=cluster.training_operator,
        stage=wanted.stage,
        run=_slug(run),
        image=str(wanted.image),
        version=version,
        num_pods=place.sizes[-1],
        min_pods=place.sizes[0],
        num_gpus=place.gpus,
        num_neuron_devices=place.neuron_devices,
        processes_per_device=place.hardware.processes_per_accelerator,
        num_efa=place.num_efa,
        num_cpus=cpus,
        memory_gib=memory_gib,
        node_labels=node_labels(place.groups, by_name=wanted.group is not None),
        tolerations=tolerations(place.groups),
        claim=LUSTRE_CLAIM,
        mount=cluster.storage.lustre.mount_path,
        work_folder=place.folder,
        run_dir=run_dir,
        output=output,
        config=config,
        overrides=overrides,
        user=TRAINING_UID,
        queue=queue,
        priority=priority,
        preferred_topology=wanted.preferred_topology,
        required_topology=wanted.required_topology,
        service_account=wanted.service_account or _service_account(cluster, place.namespace),
        hang_seconds=wanted.hang_seconds,
        max_retries=wanted.num_retries,
    )


def _service_account(cluster: EksCluster, namespace: str) -> str | None:
    """That of jobs, where the cluster has one."""
    return JOB_SERVICE_ACCOUNT if cluster.mlflow and namespace in job_namespaces(cluster) else None


def _slug(name: str) -> str:
    """A DNS label of a run's name. Of a long one it has the beginning, and a hash for the rest."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    if len(label) <= MAX_LABEL:
        return label
    rest = hashlib.sha256(label.encode()).hexdigest()[:8]
    return f"{label[: MAX_LABEL - 9].strip('-')}-{rest}"


def _job_name(stage: str, run: str) -> str:
    """Short enough for what operators append, and never the same twice."""
    suffix = secrets.token_hex(3)
    return f"{stage}-{run[: MAX_NAME - LONGEST_STAGE - 8].strip('-')}-{suffix}"
