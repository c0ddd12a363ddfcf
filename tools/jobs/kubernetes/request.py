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
from config.kubernetes_names import JOB_SERVICE_ACCOUNT, LUSTRE_CLAIM, TRAINING_UID, job_namespaces
from tools.jobs.bandwidth import asked_bandwidth, expectation
from tools.jobs.checks import bionemo_problems, listed, output_of, path_problems, shard_problems
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
from workloads.run_file import RunFile, xla_violations
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
    problems += path_problems(
        config,
        wanted.stage,
        place.folder,
        lambda path: is_shared(cluster, path),
        who="pods",
        where=cluster.storage.lustre.mount_path,
    )
    problems += bionemo_problems(config, wanted.stage, place.sizes, place.num_processes)
    if wanted.stage == "train":
        problems += shard_problems(config, place.sizes, place.num_processes)
        problems += xla_violations(config) if place.neuron_devices else []
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
        # The file's name is another one in the pods, where the model's place may decide on the output.
        overrides=(*overrides, f"name={config.name}", *([f"inference.output={output}"] if output else ())),
    )


def bandwidth_job(cluster: EksCluster, settings: Sequence[str], wanted: EksWanted, *, version: str) -> PodJob:
    """A job that measures all-reduces; ``settings`` are ``at_least=<GB/s>``, or nothing.

    Raises:
        ValueError: listing all that does not fit together.
    """
    problems: list[str] = []
    at_least = asked_bandwidth(settings, problems)
    place = placement(cluster, wanted, problems)
    if place.sizes and place.sizes[-1] * place.num_processes == 1:
        problems.append("NODES: got 1, with one process; an all-reduce needs two")
    if problems:
        raise ValueError(listed(problems))
    has_efa = bool(place.gpus and place.hardware.num_efa)
    run = f"bandwidth-{place.hardware.name.removeprefix('ml.')}"
    return _job(
        cluster,
        wanted,
        place,
        version=version,
        run=run,
        run_dir=str(PurePosixPath(place.folder) / "runs" / run),
        output="",
        config=expectation(place.hardware, has_efa=has_efa, at_least_gb_s=at_least).text(),
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
