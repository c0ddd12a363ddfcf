"""Placement of a Kubernetes job by the cluster file: team, nodes and share of nodes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from config.eks_cluster import EksCluster, EksInstanceGroup
from config.facts.instance_catalogue import InstanceType, instance_type
from config.resource_names import COMMON_NAMESPACE
from config.task_governance import BORROW_LIMIT_PERCENT, team_namespace
from seqlm.launch.pod_job import DEEP_HEALTH_LABEL, GROUP_LABEL, INSTANCE_TYPE_LABEL, PodJob
from seqlm.runs.stages import STAGES
from tools.jobs.checks import (
    DATA_CPUS,
    AvailableNodes,
    Share,
    SharedFiles,
    Wanted,
    accelerator_problems,
    accelerators_of,
    size_problems,
    sizes_of,
)

IMAGE = re.compile(r"[\w.-]+(:\d+)?(/[a-z0-9._-]+)+(:[\w.-]+)?@sha256:[0-9a-f]{64}")
RESUMED_NAMESPACE = re.compile(r"kubeflow$|hyperpod")
"""SageMaker developer guide, "Automatic node recovery and auto-resume"."""
MIN_HANG_SECONDS = 60
"""Least value of ``--hang-seconds``. The operator's agent looks once a second, and a process writes at most
five lines in this time."""
DATA_MEMORY_GIB = 16
"""Memory for a preparation of data."""
MOST_RETRIES = 1000
"""Largest value of ``--max-retries``."""
TOPOLOGIES = (
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    "topology.k8s.aws/ultraserver-id",
)
"""Labels of HyperPod's nodes by which Kueue may put pods near each other; layer 3 is the nearest (SageMaker
developer guide, "Topology-aware scheduling")."""


@dataclass(frozen=True, kw_only=True)
class EksWanted(Wanted):
    """Options of ``make ... TARGET=eks``."""

    team: str | None = None
    namespace: str | None = None
    priority: str | None = None
    preferred_topology: str | None = None
    required_topology: str | None = None
    group: str | None = None
    service_account: str | None = None
    hang_seconds: int = PodJob.hang_seconds
    max_retries: int | None = None
    """Value of ``--max-retries``; None uses the stage's default."""

    @property
    def num_retries(self) -> int:
        """Return the number of restarts by the operator."""
        return STAGES[self.stage].retries if self.max_retries is None else self.max_retries


@dataclass(frozen=True, kw_only=True)
class PodShare:
    """Share of a node that a pod requests."""

    cpus: int
    memory_gib: int


@dataclass(frozen=True, kw_only=True)
class Quota:
    """Whole nodes of a type that a team may use."""

    own: int
    """Number of nodes of the team's quota."""
    with_borrowed: int
    """Number of nodes with all that the team may borrow."""


@dataclass(frozen=True, kw_only=True)
class Placement(Share):
    """Team of a job, and nodes of its pods."""

    team: str | None
    namespace: str
    folder: str
    groups: Sequence[EksInstanceGroup]
    priority: str | None

    @property
    def num_efa(self) -> int:
        """Return all interfaces of a node with all accelerators, otherwise a share; none for a single pod."""
        hardware = self.hardware
        if not self.accelerators or self.sizes[-1] == 1 or not hardware.num_efa:
            return 0
        return max(1, hardware.num_efa * self.accelerators // hardware.num_accelerators)

    def share(self, stage: str) -> PodShare:
        """Return the share of a node's CPUs and memory that belongs to the accelerators of a pod.

        Kubernetes and its daemons keep the rest. A tenth of the CPUs and 15 % of the memory, but at least one
        CPU and 1 GiB, are more than kubelet, the health monitoring agent and device plugins take.
        """
        hardware = self.hardware
        per_core = hardware.threads_per_core
        cpus = min(
            hardware.vcpus * (group.threads_per_core or per_core) // per_core
            for group in self.groups
        )
        free_cpus = max(1, cpus * 9 // 10 - 1)
        free_gib = max(1, int(hardware.memory_gib * 0.85) - 1)
        if STAGES[stage].one_process:
            return PodShare(
                cpus=min(DATA_CPUS, free_cpus), memory_gib=min(DATA_MEMORY_GIB, free_gib)
            )
        part = self.accelerators / hardware.num_accelerators if self.accelerators else 1.0
        return PodShare(cpus=max(1, int(free_cpus * part)), memory_gib=max(1, int(free_gib * part)))


def placement(
    cluster: EksCluster, groups: Sequence[EksInstanceGroup], wanted: EksWanted
) -> Placement:
    """Return the team and the nodes of a job on groups of one instance type."""
    hardware = instance_type(groups[0].instance_type)
    team = chosen_team(cluster, wanted.team)
    return Placement(
        team=team,
        namespace=chosen_namespace(wanted.namespace, team),
        folder=job_folder(cluster, wanted),
        groups=groups,
        hardware=hardware,
        accelerators=accelerators_of(hardware, wanted),
        sizes=sizes_of(wanted, _available(groups, _quota(cluster, team, hardware))),
        priority=wanted.priority,
    )


def job_folder(cluster: EksCluster, wanted: EksWanted) -> str:
    """Return the folder of a job's runs, data and downloads."""
    namespace = chosen_namespace(wanted.namespace, chosen_team(cluster, wanted.team))
    return wanted.folder or f"{cluster.storage.shared_path}/{namespace}/esm2"


def placement_problems(cluster: EksCluster, wanted: EksWanted) -> Iterator[str]:
    """Yield what is wrong with the team, the image and the nodes of a job."""
    team = chosen_team(cluster, wanted.team)
    namespace = chosen_namespace(wanted.namespace, team)
    yield from team_problems(cluster, wanted.team)
    yield from shared_files(cluster).folder_problems(job_folder(cluster, wanted))
    if cluster.training_operator == "kubeflow" and not RESUMED_NAMESPACE.match(namespace):
        yield (
            f"--namespace: got {namespace}; HyperPod resumes Kubeflow's jobs in kubeflow and in namespaces "
            "whose name begins with hyperpod"
        )
    if not IMAGE.fullmatch(wanted.image or ""):
        yield (
            f"IMAGE: got {wanted.image or 'none'}; a job names its image by digest, "
            "<registry>/<repository>@sha256:<64 digits>, as make push prints it"
        )
    if wanted.hang_seconds < MIN_HANG_SECONDS:
        yield (
            f"--hang-seconds: got {wanted.hang_seconds}; give at least {MIN_HANG_SECONDS}, "
            "and more than a step takes"
        )
    if not 0 <= wanted.num_retries <= MOST_RETRIES:
        yield f"--max-retries: got {wanted.max_retries}; allowed are 0 to {MOST_RETRIES}"
    yield from _topology_problems(wanted, team)
    yield from priority_problems(cluster, wanted.priority, team)
    yield from group_problems(cluster, wanted.group)
    groups = groups_of_type(cluster, wanted.group)
    if groups:
        yield from _node_problems(cluster, groups, wanted)


def _node_problems(
    cluster: EksCluster, groups: Sequence[EksInstanceGroup], wanted: EksWanted
) -> Iterator[str]:
    """Yield what is wrong with the accelerators and the number of nodes."""
    hardware = instance_type(groups[0].instance_type)
    yield from accelerator_problems(hardware, wanted, option="--group")
    quota = _quota(cluster, chosen_team(cluster, wanted.team), hardware)
    nodes = _available(groups, quota)
    yield from size_problems(wanted, nodes)
    sizes = sizes_of(wanted, nodes)
    if sizes and quota and sizes[-1] > quota.with_borrowed:
        yield (
            f"NODES: got {wanted.nodes}; the team's quota of {hardware.name} is {quota.own} node(s), "
            f"{quota.with_borrowed} with all that it may borrow"
        )
    if len(sizes) < 2:
        return
    if not STAGES[wanted.stage].resizes:
        yield f"NODES: got {wanted.nodes}; only training continues with another number of nodes"
    if cluster.training_operator == "hyperpod":
        # SageMaker developer guide, "Using elastic training in Amazon SageMaker HyperPod".
        for group in groups:
            if group.capacity == "spot":
                yield (
                    f"NODES: got {wanted.nodes}; HyperPod's operator does not change the number of spot "
                    f"nodes, which {group.name} has"
                )


def shared_files(cluster: EksCluster) -> SharedFiles:
    """Return the file systems that all pods mount."""
    return SharedFiles([cluster.storage.shared_path], who="pods")


def chosen_namespace(namespace: str | None, team: str | None) -> str:
    """Return the namespace that was given, else the team's, else that of all jobs."""
    return namespace or (team_namespace(team) if team else COMMON_NAMESPACE)


def chosen_team(cluster: EksCluster, team: str | None) -> str | None:
    """Return the team of a job, by default the first one; None if the cluster file has no teams."""
    return team or next((found.name for found in cluster.teams), None)


def team_problems(cluster: EksCluster, team: str | None) -> Iterator[str]:
    """Yield what is wrong with the value of ``--team``."""
    names = [found.name for found in cluster.teams]
    if team is None and len(names) > 1:
        yield f"--team: got none; give the team of the job: {', '.join(names)}"
    elif team is not None and team not in names:
        has = (
            f"the cluster file has {', '.join(names)}" if names else "the cluster file has no teams"
        )
        yield f"--team: got {team}; {has}"


def priority_problems(cluster: EksCluster, priority: str | None, team: str | None) -> Iterator[str]:
    """Yield what is wrong with the value of ``--priority``, a priority class for pods of a team."""
    classes = cluster.task_governance.priority_classes if cluster.task_governance else []
    names = [found.name for found in classes]
    if priority is not None and (priority not in names or team is None):
        yield f"--priority: got {priority}; the cluster file has {', '.join(names) or 'none'}"


def queue_names(team: str | None, priority: str | None) -> tuple[str | None, str | None]:
    """Return SageMaker's names of a queue and a priority class (developer guide, "Task governance")."""
    return (
        f"{team_namespace(team)}-localqueue" if team else None,
        f"{priority}-priority" if priority else None,
    )


def _topology_problems(wanted: EksWanted, team: str | None) -> Iterator[str]:
    """Yield what is wrong with the values of ``--preferred-topology`` and ``--required-topology``."""
    asked = {
        "--preferred-topology": wanted.preferred_topology,
        "--required-topology": wanted.required_topology,
    }
    given = {option: label for option, label in asked.items() if label is not None}
    for option, label in given.items():
        if label not in TOPOLOGIES:
            yield f"{option}: got {label}; allowed are {', '.join(TOPOLOGIES)}"
    if len(given) > 1:
        yield "--preferred-topology, --required-topology: give one of them"
    if given and team is None:
        yield (
            f"{', '.join(given)}: Kueue looks for such nodes, for jobs of a team; the cluster file has no "
            "teams"
        )


def groups_of_type(cluster: EksCluster, wanted: str | None) -> list[EksInstanceGroup]:
    """Return groups of one instance type: the given one, or those of the first type with accelerators."""
    ordered = sorted(
        cluster.instance_groups,
        key=lambda group: instance_type(group.instance_type).num_accelerators == 0,
    )
    if wanted is not None:
        return [group for group in ordered if group.name == wanted]
    return [group for group in ordered if group.instance_type == ordered[0].instance_type]


def group_problems(cluster: EksCluster, wanted: str | None) -> Iterator[str]:
    """Yield what is wrong with the value of ``--group``."""
    names = [group.name for group in cluster.instance_groups]
    if wanted is not None and wanted not in names:
        yield f"--group: got {wanted}; the cluster file has {', '.join(names)}"


def node_labels(groups: Sequence[EksInstanceGroup], *, by_name: bool) -> dict[str, str]:
    """Return node labels that select groups of one instance type; ``by_name`` selects a single group."""
    labels = {INSTANCE_TYPE_LABEL: groups[0].instance_type}
    if by_name:
        labels[GROUP_LABEL] = groups[0].name
    if all(group.deep_health_checks for group in groups):
        labels[DEEP_HEALTH_LABEL] = "Passed"
    return labels


def tolerations(groups: Sequence[EksInstanceGroup]) -> tuple[dict[str, str], ...]:
    """Return tolerations of the groups' own taints, but not of the taint of unhealthy nodes."""
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


def _quota(cluster: EksCluster, team_name: str | None, hardware: InstanceType) -> Quota | None:
    """Return the nodes of a team's quota, without and with borrowed ones; None if it has no quota."""
    team = next((found for found in cluster.teams if found.name == team_name), None)
    if team is None:
        return None
    own = sum(
        (part.num_instances or 0)
        + (part.num_accelerators or 0) // max(1, hardware.num_accelerators)
        for part in team.quota
        if part.instance_type == hardware.name
    )
    if not own:
        return None  # such a team uses what is lent, which only Kueue knows
    percent = team.borrow_limit_percent or BORROW_LIMIT_PERCENT
    borrowed = own * percent // 100 if team.sharing == "lend_and_borrow" else 0
    return Quota(own=own, with_borrowed=own + borrowed)


def _available(groups: Sequence[EksInstanceGroup], quota: Quota | None) -> AvailableNodes:
    return AvailableNodes(
        number=sum(group.max_instances or group.num_instances for group in groups),
        name=", ".join(group.name for group in groups),
        own=quota.own if quota else None,
    )
