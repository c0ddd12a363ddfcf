"""A job of Kubernetes from a run file and a cluster file."""

import hashlib
import re
import secrets
from collections.abc import Sequence

from config.eks_cluster import EksCluster
from config.resource_names import JOB_SERVICE_ACCOUNT, LUSTRE_CLAIM, TRAINING_UID, job_namespaces
from tools.jobs.kubernetes.placement import (
    EksWanted,
    node_labels,
    placement,
    queue_names,
    shared_files,
    tolerations,
)
from tools.jobs.work import NamedRun, work_of
from workloads.launch.pod_job import PodJob
from workloads.stages import STAGES

MAX_NAME = 40
"""Operators append to a job's name, and the result is a label with 63 characters at most."""
MAX_LABEL = 63
LONGEST_STAGE = max(map(len, STAGES))


def pod_job(
    cluster: EksCluster, run: NamedRun | None, overrides: Sequence[str], wanted: EksWanted, *, version: str
) -> PodJob:
    """Return a job with a name of its own.

    Args:
        cluster: has the nodes.
        run: the run; None for a bandwidth job.
        overrides: settings, as ``work_of`` takes them.
        wanted: the job's options.
        version: of the code.

    Raises:
        ValueError: listing all that does not fit together.
    """
    problems: list[str] = []
    place = placement(cluster, wanted, problems)
    work = work_of(run, overrides, wanted, place, place.folder, shared_files(cluster), problems)
    cpus, memory_gib = place.share(wanted.stage)
    has_account = cluster.mlflow and place.namespace in job_namespaces(cluster)
    queue, priority = queue_names(place.team, place.priority)
    run_name = _slug(work.run)
    return PodJob(
        # Short enough for what operators append, and never the same twice.
        name=f"{wanted.stage}-{run_name[: MAX_NAME - LONGEST_STAGE - 8].strip('-')}-{secrets.token_hex(3)}",
        namespace=place.namespace,
        operator=cluster.training_operator,
        stage=wanted.stage,
        run=run_name,
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
        run_dir=work.run_dir,
        output=work.output,
        config=work.config,
        overrides=work.overrides,
        user=TRAINING_UID,
        queue=queue,
        priority=priority,
        preferred_topology=wanted.preferred_topology,
        required_topology=wanted.required_topology,
        service_account=wanted.service_account or (JOB_SERVICE_ACCOUNT if has_account else None),
        hang_seconds=wanted.hang_seconds,
        max_retries=wanted.num_retries,
    )


def _slug(name: str) -> str:
    """A DNS label of a run's name. Of a long one it has the beginning, and a hash for the rest."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    if len(label) <= MAX_LABEL:
        return label
    rest = hashlib.sha256(label.encode()).hexdigest()[:8]
    return f"{label[: MAX_LABEL - 9].strip('-')}-{rest}"
