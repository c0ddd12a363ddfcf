"""Placement of a Kubernetes job by the cluster file: team, nodes and share of nodes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from config.eks_cluster import EksCluster, EksInstanceGroup
from config.facts.instance_catalogue import InstanceType, instance_type
from config.resource_names import COMMON_NAMESPACE
from config.task_governance import BORROW_LIMIT_PERCENT, team_namespace
from seqlm.launch.pod_job import DEEP_HEALTH_LABEL, GROUP_LABEL, INSTANCE_TYPE_LABEL, PodJob
from seqlm.runs.stages import STAGES
from tools.jobs.checks import DATA_CPUS, Share, SharedFiles, Wanted, accelerators_of, listed, sizes_of

IMAGE = re.compile(r"[\w.-]+(:\d+)?(/[a-z0-9._-]+)+(:[\w.-]+)?@sha256:[0-9a-f]{64}")
RESUMED_NAMESPACE = re.compile(r"kubeflow$|hyperpod")
"""SageMaker developer guide, "Automatic node recovery and auto-resume"."""
MIN_HANG_SECONDS = 60
"""The operator's agent looks once a second; a process writes five lines in this time at most."""
DATA_MEMORY_GIB = 16
MOST_RETRIES = 1000
TOPOLOGIES = (
    *(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (1, 2, 3)),
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
    """None uses the stage's default."""

    @property
    def num_retries(self) -> int:
        return STAGES[self.stage].retries if self.max_retries is None else self.max_retries


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

    def share(self, stage: str) -> tuple[int, int]:
        """CPUs and GiB of memory: what Kubernetes and its daemons leave of a node, by the accelerators'
        share.

        A tenth of the CPUs and 15 % of the memory, one CPU and 1 GiB at least, are more than kubelet, the
        health monitoring agent and device plugins take.
        """
        hardware, per_core = self.hardware, self.hardware.threads_per_core
        cpus = min(hardware.vcpus * (group.threads_per_core or per_core) // per_core for group in self.groups)
        cpus, memory = max(1, cpus * 9 // 10 - 1), max(1, int(hardware.memory_gib * 0.85) - 1)
        if STAGES[stage].one_process:
            return min(DATA_CPUS, cpus), min(DATA_MEMORY_GIB, memory)
        part = self.accelerators / hardware.num_accelerators if self.accelerators else 1.0
        return max(1, int(cpus * part)), max(1, int(memory * part))


def placement(cluster: EksCluster, wanted: EksWanted, problems: list[str]) -> Placement:
    """Find the nodes, and add to the problems what does not fit.

    Raises:
        ValueError: listing all problems, if there is no such group.
    """
    team = chosen_team(cluster, wanted.team, problems)
    namespace = chosen_namespace(wanted.namespace, team)
    folder = wanted.folder or f"{cluster.storage.lustre.mount_path}/{namespace}/esm2"
    problems += shared_files(cluster).folder_problems(folder)
    if cluster.training_operator == "kubeflow" and not RESUMED_NAMESPACE.match(namespace):
        problems.append(
            f"--namespace: got {namespace}; HyperPod resumes Kubeflow's jobs in kubeflow and in namespaces "
            "whose name begins with hyperpod"
        )
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
    if not 0 <= wanted.num_retries <= MOST_RETRIES:
        problems.append(f"--max-retries: got {wanted.max_retries}; allowed are 0 to {MOST_RETRIES}")
    problems += _topology_problems(wanted, team)
    groups = groups_of_type(cluster, wanted.group, problems)
    if not groups:
        raise ValueError(listed(problems))
    hardware = instance_type(groups[0].instance_type)
    return Placement(
        team=team,
        namespace=namespace,
        folder=folder,
        groups=groups,
        hardware=hardware,
        accelerators=accelerators_of(hardware, wanted, problems, option="--group"),
        sizes=_sizes(cluster, groups, wanted, _quota(cluster, team, hardware), problems),
        priority=chosen_priority(cluster, wanted.priority, team, problems),
    )


def shared_files(cluster: EksCluster) -> SharedFiles:
    return SharedFiles([cluster.storage.lustre.mount_path], who="pods")


def chosen_namespace(namespace: str | None, team: str | None) -> str:
    """The namespace that was named, else the team's, else that of all jobs."""
    return namespace or (team_namespace(team) if team else COMMON_NAMESPACE)


def chosen_team(cluster: EksCluster, team: str | None, problems: list[str]) -> str | None:
    """Return the team of a job; None if the cluster file has no teams."""
    names = [found.name for found in cluster.teams]
    if team is None and len(names) > 1:
        problems.append(f"--team: name one of {', '.join(names)}: whose job is it?")
    elif team is not None and team not in names:
        has = f"the cluster file has {', '.join(names)}" if names else "the cluster file has no teams"
        problems.append(f"--team: got {team}; {has}")
    return team or next(iter(names), None)


def chosen_priority(
    cluster: EksCluster, priority: str | None, team: str | None, problems: list[str]
) -> str | None:
    """A priority class of the cluster file, for a team's pods; None for the lowest."""
    classes = cluster.task_governance.priority_classes if cluster.task_governance else []
    names = [found.name for found in classes]
    if priority is None:
        return None
    if priority not in names or team is None:
        problems.append(f"--priority: got {priority}; the cluster file has {', '.join(names) or 'none'}")
    return priority


def queue_names(team: str | None, priority: str | None) -> tuple[str | None, str | None]:
    """A team's queue and the priority class as SageMaker calls them (developer guide, "Task governance")."""
    return (
        f"{team_namespace(team)}-localqueue" if team else None,
        f"{priority}-priority" if priority else None,
    )


def _topology_problems(wanted: EksWanted, team: str | None) -> list[str]:
    asked = {
        "--preferred-topology": wanted.preferred_topology,
        "--required-topology": wanted.required_topology,
    }
    given = {option: label for option, label in asked.items() if label is not None}
    problems = [
        f"{option}: got {label}; allowed are {', '.join(TOPOLOGIES)}"
        for option, label in given.items()
        if label not in TOPOLOGIES
    ]
    if len(given) > 1:
        problems.append("--preferred-topology, --required-topology: give one of them")
    if given and team is None:
        problems.append(
            f"{', '.join(given)}: Kueue looks for such nodes, for jobs of a team; the cluster file has no "
            "teams"
        )
    return problems


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


def _quota(cluster: EksCluster, team_name: str | None, hardware: InstanceType) -> tuple[int, int] | None:
    """Whole nodes of a team, and with all that it may borrow; None where nothing bounds it."""
    team = next((found for found in cluster.teams if found.name == team_name), None)
    own = sum(
        (part.num_instances or 0) + (part.num_accelerators or 0) // max(1, hardware.num_accelerators)
        for part in (team.quota if team else [])
        if part.instance_type == hardware.name
    )
    if team is None or not own:
        return None  # such a team lives on what is lent, which only Kueue knows
    percent = team.borrow_limit_percent or BORROW_LIMIT_PERCENT
    lent = own * percent // 100 if team.sharing == "lend_and_borrow" else 0
    return own, own + lent


def _sizes(
    cluster: EksCluster,
    groups: Sequence[EksInstanceGroup],
    wanted: EksWanted,
    quota: tuple[int, int] | None,
    problems: list[str],
) -> range:
    there = sum(group.max_instances or group.num_instances for group in groups)
    names = ", ".join(group.name for group in groups)
    own, with_borrowed = quota or (there, there)
    sizes = sizes_of(wanted, there, problems, own=own, who=names)
    if sizes and sizes[-1] > with_borrowed:
        problems.append(
            f"NODES: got {wanted.nodes}; the team's quota of {groups[0].instance_type} is {own} node(s), "
            f"{with_borrowed} with all that it may borrow"
        )
    if len(sizes) > 1 and not STAGES[wanted.stage].resizes:
        problems.append(f"NODES: got {wanted.nodes}; only training continues with another number of nodes")
    if len(sizes) > 1 and cluster.training_operator == "hyperpod":
        # SageMaker developer guide, "Using elastic training in Amazon SageMaker HyperPod".
        problems += [
            f"NODES: got {wanted.nodes}; HyperPod's operator does not change the number of spot nodes, "
            f"which {group.name} has"
            for group in groups
            if group.capacity == "spot"
        ]
    return sizes
