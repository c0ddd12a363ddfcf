"""A job of Kubernetes from a run file and a cluster file: which nodes, how much of them, whose it is.

Everything that can be known to be wrong is told here, before the cluster is asked for anything.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from config.eks_cluster import EksCluster, EksInstanceGroup
from config.instance_catalogue import InstanceType, instance_type
from config.kubernetes_names import COMMON_NAMESPACE, LUSTRE_CLAIM, TRAINING_UID, job_folder
from config.task_governance import team_namespace
from tools.bandwidth_request import asked_bandwidth, expectation
from tools.job_request import listed
from workloads.esm2.config import RunConfig
from workloads.esm2.data.run_data import paths_read
from workloads.esm2.launch.kubernetes_job import (
    DEEP_HEALTH_LABEL,
    GROUP_LABEL,
    INSTANCE_TYPE_LABEL,
    PodJob,
)

IMAGE = re.compile(r"[\w.-]+(:\d+)?(/[a-z0-9._-]+)+(:[\w.-]+)?@sha256:[0-9a-f]{64}")
MIN_HANG_SECONDS = 60
"""The operator's agent looks once a second; a process writes five lines in this time at most."""
MAX_NAME = 40
"""Operators append to a job's name, and the result is a label with 63 characters at most."""
DATA_CPUS, DATA_MEMORY_GIB = 8, 16
MOST_RETRIES = 1000
LONGEST_STAGE = len("bandwidth")
BORROW_LIMIT_PERCENT = 50
"""SageMaker's, where the cluster file gives none (``config/task_governance.py``)."""


@dataclass(frozen=True)
class EksWanted:
    """Options of ``make ... TARGET=eks``."""

    stage: str
    image: str | None
    nodes: str | None = None
    team: str | None = None
    namespace: str | None = None
    priority: str | None = None
    group: str | None = None
    gpus_per_node: int | None = None
    folder: str | None = None
    service_account: str | None = None
    hang_seconds: int = PodJob.hang_seconds
    max_retries: int = PodJob.max_retries


def pod_job(
    cluster: EksCluster,
    config: RunConfig,
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
    place = _placement(cluster, wanted, problems)
    mount = cluster.storage.lustre.mount_path
    problems += _path_problems(config, place.folder, mount)
    shard_size, num_processes = config.parallel.shard_size, place.num_pods * max(1, place.gpus)
    if wanted.stage == "train" and shard_size and num_processes % shard_size:
        problems.append(
            f"parallel.shard_size: got {shard_size}; it must divide the number of processes, which is "
            f"{num_processes} on {place.num_pods} node(s)"
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
        config=config_text,
        # The file's name is another one in the pods.
        overrides=(*overrides, f"name={config.name}"),
    )


def bandwidth_job(cluster: EksCluster, settings: Sequence[str], wanted: EksWanted, *, version: str) -> PodJob:
    """A job that measures all-reduces; ``settings`` are ``at_least=<GB/s>``, or nothing.

    Raises:
        ValueError: listing all that does not fit together.
    """
    problems: list[str] = []
    at_least = asked_bandwidth(settings, problems)
    place = _placement(cluster, wanted, problems)
    if place.num_pods * max(1, place.gpus) == 1:
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
        config=expectation(place.hardware, has_efa=has_efa, at_least_gb_s=at_least).text(),
        overrides=(),
    )


@dataclass(frozen=True)
class _Placement:
    team: str | None
    namespace: str
    folder: str
    groups: Sequence[EksInstanceGroup]
    hardware: InstanceType
    num_pods: int
    """0 if there is a problem."""
    gpus: int
    """Of each pod."""
    priority: str | None


def _placement(cluster: EksCluster, wanted: EksWanted, problems: list[str]) -> _Placement:
    """Find the nodes, and add to the problems what does not fit.

    Raises:
        ValueError: listing all problems, if there is no such group.
    """
    team = chosen_team(cluster, wanted.team, problems)
    namespace = wanted.namespace or (team_namespace(team) if team else COMMON_NAMESPACE)
    folder, mount = wanted.folder or default_folder(cluster, namespace), cluster.storage.lustre.mount_path
    if not is_below(folder, mount):
        problems.append(f"--folder: got {folder}; pods share {mount}")
    if not IMAGE.fullmatch(wanted.image or ""):
        problems.append(
            f"IMAGE: got {wanted.image or 'none'}; a job names its image by digest, "
            "<registry>/<repository>@sha256:<64 digits>, as make push prints it"
        )
    if wanted.hang_seconds < MIN_HANG_SECONDS:
        problems.append(
            f"--hang-seconds: got {wanted.hang_seconds}; give at least {MIN_HANG_SECONDS}, "
            "and more than a step takes"
        )
    if not 0 <= wanted.max_retries <= MOST_RETRIES:
        problems.append(f"--max-retries: got {wanted.max_retries}; allowed are 0 to {MOST_RETRIES}")
    groups = groups_of_type(cluster, wanted.group, problems)
    if not groups:
        raise ValueError(listed(problems))
    hardware = instance_type(groups[0].instance_type)
    return _Placement(
        team=team,
        namespace=namespace,
        folder=folder,
        groups=groups,
        hardware=hardware,
        gpus=_gpus(hardware, wanted, problems),
        num_pods=_num_pods(groups, wanted, _quota(cluster, team, hardware), problems),
        priority=_priority(cluster, wanted.priority, team, problems),
    )


def _job(
    cluster: EksCluster,
    wanted: EksWanted,
    place: _Placement,
    *,
    version: str,
    run: str,
    run_dir: str,
    config: str,
    overrides: tuple[str, ...],
) -> PodJob:
    cpus, memory_gib = _share(place.groups, place.hardware, place.gpus, wanted.stage)
    return PodJob(
        name=_job_name(wanted.stage, _slug(run)),
        namespace=place.namespace,
        operator=cluster.training_operator,
        stage=wanted.stage,
        run=_slug(run),
        image=str(wanted.image),
        version=version,
        num_pods=place.num_pods,
        num_gpus=place.gpus,
        num_efa=_num_efa(place.hardware, place.gpus, place.num_pods),
        num_cpus=cpus,
        memory_gib=memory_gib,
        node_labels=node_labels(place.groups, by_name=wanted.group is not None),
        tolerations=tolerations(place.groups),
        claim=LUSTRE_CLAIM,
        mount=cluster.storage.lustre.mount_path,
        work_folder=place.folder,
        run_dir=run_dir,
        config=config,
        overrides=overrides,
        user=TRAINING_UID,
        # SageMaker's names: developer guide, "Task governance".
        queue=f"{team_namespace(place.team)}-localqueue" if place.team else None,
        priority=f"{place.priority}-priority" if place.priority else None,
        service_account=wanted.service_account,
        hang_seconds=wanted.hang_seconds,
        max_retries=wanted.max_retries,
    )


def default_folder(cluster: EksCluster, namespace: str) -> str:
    """Where runs, data and downloads of a namespace are."""
    return f"{cluster.storage.lustre.mount_path}/{job_folder(namespace)}/esm2"


def chosen_team(cluster: EksCluster, team: str | None, problems: list[str]) -> str | None:
    """Whose job it is; None where the cluster file has no teams."""
    names = [found.name for found in cluster.task_governance.teams] if cluster.task_governance else []
    if team is None and len(names) > 1:
        problems.append(f"--team: name one of {', '.join(names)}: whose job is it?")
    elif team is not None and team not in names:
        has = f"the cluster file has {', '.join(names)}" if names else "the cluster file has no teams"
        problems.append(f"--team: got {team}; {has}")
    return team or next(iter(names), None)


def _priority(cluster: EksCluster, priority: str | None, team: str | None, problems: list[str]) -> str | None:
    classes = cluster.task_governance.priority_classes if cluster.task_governance else []
    names = [found.name for found in classes]
    if priority is None:
        return None
    if priority not in names or team is None:
        problems.append(f"--priority: got {priority}; the cluster file has {', '.join(names) or 'none'}")
    return priority


def groups_of_type(cluster: EksCluster, wanted: str | None, problems: list[str]) -> list[EksInstanceGroup]:
    """Groups of one type: that of the named one, or the first with accelerators."""
    ordered = sorted(
        cluster.instance_groups, key=lambda group: instance_type(group.instance_type).num_accelerators == 0
    )
    names = [group.name for group in cluster.instance_groups]
    if wanted is not None and wanted not in names:
        problems.append(f"--group: got {wanted}; the cluster file has {', '.join(names)}")
        return []
    if wanted is not None:
        return [group for group in ordered if group.name == wanted]
    return [group for group in ordered if group.instance_type == ordered[0].instance_type]


def _gpus(hardware: InstanceType, wanted: EksWanted, problems: list[str]) -> int:
    if wanted.stage == "data":
        return 0
    if (hardware.accelerator or "").startswith(("Trainium", "Inferentia")) and wanted.gpus_per_node != 0:
        problems.append(f"--group: {hardware.name} has {hardware.accelerator}; training runs on NVIDIA GPUs")
    found = hardware.num_accelerators
    gpus = found if wanted.gpus_per_node is None else wanted.gpus_per_node
    if not 0 <= gpus <= found:
        problems.append(f"--gpus-per-node: got {gpus}; {hardware.name} has {found}")
    return gpus


@dataclass(frozen=True)
class _Nodes:
    """Of one instance type, for one team."""

    own: int
    with_borrowed: int


def _quota(cluster: EksCluster, team_name: str | None, hardware: InstanceType) -> _Nodes | None:
    """Whole nodes that a team may use; None where nothing bounds it."""
    teams = cluster.task_governance.teams if cluster.task_governance else []
    for team in teams:
        if team.name != team_name:
            continue
        own = 0
        for part in team.quota:
            if part.instance_type == hardware.name:
                own += part.num_instances or 0
                own += (part.num_accelerators or 0) // max(1, hardware.num_accelerators)
        if not own:
            return None  # lives on what is lent, which only Kueue knows
        percent = team.borrow_limit_percent or BORROW_LIMIT_PERCENT
        lent = own * percent // 100 if team.sharing == "lend_and_borrow" else 0
        return _Nodes(own, own + lent)
    return None


def _num_pods(
    groups: Sequence[EksInstanceGroup], wanted: EksWanted, quota: _Nodes | None, problems: list[str]
) -> int:
    """How many nodes; 0 if there is a problem."""
    there = sum(group.max_instances or group.num_instances for group in groups)
    names = ", ".join(group.name for group in groups)
    most = min(there, quota.own) if quota else there
    asked = wanted.nodes or str(most if wanted.stage in ("train", "bandwidth") else 1)
    if not re.fullmatch(r"[1-9]\d*", asked):
        problems.append(f"NODES: got {asked}; expected a number from 1")
    elif wanted.stage == "data" and asked != "1":
        problems.append(f"NODES: got {asked}; data are prepared on 1 node")
    elif int(asked) > there:
        problems.append(f"NODES: got {asked}; {names} has {there} in the cluster file")
    elif quota and int(asked) > quota.with_borrowed:
        problems.append(
            f"NODES: got {asked}; the team's quota of {groups[0].instance_type} is {quota.own} node(s), "
            f"{quota.with_borrowed} with all that it may borrow"
        )
    else:
        return int(asked)
    return 0


def _num_efa(hardware: InstanceType, gpus: int, num_pods: int) -> int:
    """All of the node with all of its GPUs, else a share; none where there is nobody to talk to."""
    if not gpus or num_pods == 1 or not hardware.num_efa:
        return 0
    return max(1, hardware.num_efa * gpus // hardware.num_accelerators)


def _share(
    groups: Sequence[EksInstanceGroup], hardware: InstanceType, gpus: int, stage: str
) -> tuple[int, int]:
    """CPUs and GiB of memory: what Kubernetes and its daemons leave of a node, by the GPUs' share.

    A tenth of the CPUs and 15 % of the memory, one CPU and 1 GiB at least, are more than kubelet, the health
    monitoring agent and device plugins take.
    """
    per_core = hardware.threads_per_core
    cpus = min(hardware.vcpus * (group.threads_per_core or per_core) // per_core for group in groups)
    cpus, memory = max(1, cpus * 9 // 10 - 1), max(1, int(hardware.memory_gib * 0.85) - 1)
    if stage == "data":
        return min(DATA_CPUS, cpus), min(DATA_MEMORY_GIB, memory)
    part = gpus / hardware.num_accelerators if gpus else 1.0
    return max(1, int(cpus * part)), max(1, int(memory * part))


def node_labels(groups: Sequence[EksInstanceGroup], *, by_name: bool) -> dict[str, str]:
    labels = {INSTANCE_TYPE_LABEL: groups[0].instance_type}
    if by_name:
        labels[GROUP_LABEL] = groups[0].name
    if all(group.deep_health_checks for group in groups):
        labels[DEEP_HEALTH_LABEL] = "Passed"
    return labels


def tolerations(groups: Sequence[EksInstanceGroup]) -> tuple[dict[str, str], ...]:
    """Of the groups' own taints. That of nodes found unhealthy is not among them: jobs stay away."""
    found = {
        (taint.key, taint.value, taint.effect): {
            "key": taint.key,
            "operator": "Exists" if taint.value is None else "Equal",
            **({} if taint.value is None else {"value": taint.value}),
            "effect": taint.effect,
        }
        for group in groups
        for taint in group.taints
    }
    return tuple(found.values())


def _path_problems(config: RunConfig, folder: str, mount: str) -> list[str]:
    """What pods could not read or write."""
    problems = []
    for name, path in (
        ("runs", config.runs),
        ("data.path", config.data.path),
        ("data.downloads", config.data.downloads),
    ):
        if not is_below(str(PurePosixPath(folder) / path), mount):
            problems.append(f"{name}: got {path}; pods share {mount}. Relative paths are below {folder}")
    problems += [
        f"data: {path} is on this machine; pods read below {mount}, https:// and s3://"
        for path in paths_read(config)
        if not is_below(path, mount)
    ]
    return problems


def is_below(path: str, mount: str) -> bool:
    return ".." not in Path(path).parts and PurePosixPath(path).is_relative_to(mount)


def _slug(name: str) -> str:
    """A DNS label of a run's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"


def _job_name(stage: str, run: str) -> str:
    """Short enough for what operators append, and never the same twice."""
    suffix = secrets.token_hex(3)
    return f"{stage}-{run[: MAX_NAME - LONGEST_STAGE - 8].strip('-')}-{suffix}"
