"""Placement of a Kubernetes job by the cluster file: team, nodes and share of nodes."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from config.cluster import BoughtAs
from config.eks_cluster import EksCluster, EksInstanceGroup
from config.facts.gpu_slices import CONFIG_LABEL, STATE_DONE, STATE_LABEL
from config.resource_names import COMMON_NAMESPACE
from config.task_governance import BORROW_LIMIT_PERCENT, Team, team_namespace
from config.task_governance import Quota as ComputeAmount
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
PREFERENCE: Mapping[BoughtAs, int] = {"plan": 100, "on_demand": 50, "spot": 0}
"""Preference of Kubernetes's scheduler for nodes, up to 100: what is paid for already is used first."""
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
    gpu_slice: str | None = None
    """Profile of the slice of a GPU that the job has; None for whole GPUs."""
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
    """Whole nodes of a type, or slices of its GPUs, that a team may use."""

    own: int
    """Number in the team's quota."""
    with_borrowed: int
    """Number with all that the team may borrow."""


@dataclass(frozen=True, kw_only=True)
class Placement(Share):
    """Team of a job, and nodes of its pods."""

    team: str | None
    namespace: str
    folder: str
    groups: Sequence[EksInstanceGroup]
    priority: str | None
    managed_memory_percent: int = 0
    """Share of a node's memory that HyperPod's managed tier takes."""

    @property
    def accelerators_per_node(self) -> int:
        """Number of GPUs, slices or Neuron devices of a node."""
        gpu_slice = self.groups[0].gpu_slice
        return gpu_slice.per_node(self.hardware) if gpu_slice else self.hardware.num_accelerators

    @property
    def num_efa(self) -> int:
        """Return all interfaces of a node with all accelerators, otherwise a share; none for a single pod."""
        hardware = self.hardware
        if not self.accelerators or self.sizes[-1] == 1 or not hardware.num_efa:
            return 0
        return max(1, hardware.num_efa * self.accelerators // hardware.num_accelerators)

    def share(self, stage: str) -> PodShare:
        """Return the share of a node's CPUs and memory that belongs to the accelerators of a pod.

        Kubernetes and its daemons keep the rest, and HyperPod's managed tier its share. A tenth of the CPUs
        and 15 % of the memory, but at least one CPU and 1 GiB, are more than kubelet, the health monitoring
        agent and device plugins take.
        """
        hardware = self.hardware
        per_core = hardware.threads_per_core
        cpus = min(
            hardware.vcpus * (group.threads_per_core or per_core) // per_core
            for group in self.groups
        )
        free_cpus = max(1, cpus * 9 // 10 - 1)
        free_share = 0.85 - self.managed_memory_percent / 100
        free_gib = max(1, int(hardware.memory_gib * free_share) - 1)
        if STAGES[stage].one_process:
            return PodShare(
                cpus=min(DATA_CPUS, free_cpus), memory_gib=min(DATA_MEMORY_GIB, free_gib)
            )
        part = self.accelerators / self.accelerators_per_node if self.accelerators else 1.0
        return PodShare(cpus=max(1, int(free_cpus * part)), memory_gib=max(1, int(free_gib * part)))


def placement(
    cluster: EksCluster, groups: Sequence[EksInstanceGroup], wanted: EksWanted
) -> Placement:
    """Return the team and the nodes of a job on groups of one instance type."""
    wanted = _on_one_slice(wanted)
    hardware = groups[0].hardware
    team = chosen_team(cluster, wanted.team)
    return Placement(
        team=team,
        namespace=chosen_namespace(wanted.namespace, team),
        folder=job_folder(cluster, wanted),
        groups=groups,
        hardware=hardware,
        accelerators=accelerators_of(hardware, wanted),
        sizes=sizes_of(wanted, _available(groups, _quota(cluster, team, groups[0], wanted))),
        priority=wanted.priority,
        managed_memory_percent=cluster.managed_memory_percent,
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
    groups = groups_of_type(cluster, wanted.group, wanted.gpu_slice)
    if not STAGES[wanted.stage].one_process and wanted.gpus_per_node != 0:
        yield from slice_problems(cluster, wanted.group, wanted.gpu_slice)
    if wanted.gpu_slice is not None:
        yield from _single_slice_problems(wanted)
        wanted = _on_one_slice(wanted)
    if groups:
        yield from _node_problems(cluster, groups, wanted)
        yield from _quota_problems(cluster, groups, wanted)


def _node_problems(
    cluster: EksCluster, groups: Sequence[EksInstanceGroup], wanted: EksWanted
) -> Iterator[str]:
    """Yield what is wrong with the accelerators and the number of nodes."""
    hardware = groups[0].hardware
    yield from accelerator_problems(hardware, wanted, option="--group")
    quota = _quota(cluster, chosen_team(cluster, wanted.team), groups[0], wanted)
    nodes = _available(groups, quota)
    yield from size_problems(wanted, nodes)
    sizes = sizes_of(wanted, nodes)
    if sizes and quota and sizes[-1] > quota.with_borrowed:
        if wanted.gpu_slice is not None:
            yield (
                f"--gpu-slice: got {wanted.gpu_slice}; the team's quota has no such slice, and it may "
                "borrow none"
            )
            return
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


@dataclass(frozen=True, kw_only=True)
class PodsRequest:
    """Request of the pods that a team's queue admits together."""

    who: str
    """These pods with a verb, for messages, for example ``each pod requests``."""
    num_pods: int
    cpus: int
    """vCPUs of each pod."""
    memory_gib: int
    """Memory of each pod in GiB."""
    has_accelerators: bool
    gpu_slice: str | None
    remedy: str
    """Way out besides a larger quota, for messages, for example ``use fewer nodes or GPUs``."""


def _quota_problems(
    cluster: EksCluster, groups: Sequence[EksInstanceGroup], wanted: EksWanted
) -> Iterator[str]:
    """Yield why the team's quota never admits the job, apart from its number of nodes or slices."""
    place = placement(cluster, groups, wanted)
    # Other messages are about accelerators that the nodes lack.
    if not place.sizes or place.accelerators > place.accelerators_per_node:
        return
    share = place.share(wanted.stage)
    pods = place.sizes[-1]
    request = PodsRequest(
        who=f"{pods} pod(s) of the job request",
        num_pods=pods,
        cpus=share.cpus,
        memory_gib=share.memory_gib,
        has_accelerators=bool(place.accelerators),
        gpu_slice=wanted.gpu_slice,
        remedy="use fewer nodes or GPUs",
    )
    yield from quota_problems(cluster, place.team, groups, request)


def quota_problems(
    cluster: EksCluster,
    team_name: str | None,
    groups: Sequence[EksInstanceGroup],
    request: PodsRequest,
) -> Iterator[str]:
    """Yield why a team's quota never admits pods, apart from their number of accelerators.

    Args:
        cluster: cluster file.
        team_name: team of the pods; None if they count against no quota.
        groups: groups of one instance type, on which the pods may run.
        request: request of the pods.
    """
    team = _team_named(cluster, team_name)
    if team is None:
        return
    may_borrow = team.sharing == "lend_and_borrow"
    if not may_borrow and not any(found.instance_type in groups[0].types for found in team.quota):
        yield (
            f"--team: got {team.name}; its quota has no {groups[0].types_text}, and with sharing: "
            f"{team.sharing} it borrows none; add a quota of this type, or give another --team or --group"
        )
        return
    own = _amounts_with_devices(team.quota, groups, request)
    # A limit of CPUs and memory alone adds to the CPUs and memory of the team's own devices.
    limits = [found for found in team.borrow_limits if found.instance_type in groups[0].types]
    if not own:
        limits = _amounts_with_devices(limits, groups, request)
    for field, unit, of_pod in (
        ("vcpus", "vCPUs", request.cpus),
        ("memory_gib", "GiB of memory", request.memory_gib),
    ):
        # What no amount states is in proportion to the number of nodes or slices.
        if all(getattr(amount, field) is None for amount in (*own, *limits)):
            continue
        amount = sum(getattr(found, f"all_{field}") for found in own)
        limit = sum(getattr(found, f"all_{field}") for found in limits) if limits else None
        most = _with_borrowed(team, amount, limit)
        if request.num_pods * of_pod > most:
            yield (
                f"--team: got {team.name}; {request.who} {request.num_pods * of_pod} {unit}, and the "
                f"team's quota of {groups[0].types_text} has {amount:g}, {most:g} with all that it may "
                f"borrow; raise {field} in the cluster file, or {request.remedy}"
            )


def _amounts_with_devices(
    amounts: Sequence[ComputeAmount], groups: Sequence[EksInstanceGroup], request: PodsRequest
) -> list[ComputeAmount]:
    """Return the amounts of the groups' instance type that have devices as the pods want them.

    A team without such devices uses what is lent, which only Kueue knows.
    """
    of_type = [found for found in amounts if found.instance_type in groups[0].types]
    if not request.has_accelerators:
        return of_type
    if request.gpu_slice is not None:
        return [found for found in of_type if found.mig_profile == request.gpu_slice]
    return [found for found in of_type if found.num_instances or found.num_accelerators]


def slice_problems(cluster: EksCluster, group: str | None, gpu_slice: str | None) -> Iterator[str]:
    """Yield what is wrong with the value of ``--gpu-slice``."""
    profiles = [
        found.mig_profile
        for found in cluster.instance_groups
        if found.mig_profile and group in (None, found.name)
    ]
    where = "the cluster file" if group is None else f"group {group}"
    if gpu_slice is None:
        chosen = groups_of_type(cluster, group)
        if chosen and chosen[0].mig_profile:
            yield (
                f"--gpu-slice: got none; the GPUs of {chosen[0].name} are divided: give "
                f"--gpu-slice {chosen[0].mig_profile}, or another --group"
            )
    elif gpu_slice not in profiles:
        has = f"has {', '.join(dict.fromkeys(profiles))}" if profiles else "has no mig_profile"
        yield f"--gpu-slice: got {gpu_slice}; {where} {has}"


def _single_slice_problems(wanted: EksWanted) -> Iterator[str]:
    """Yield what is wrong with a job that wants more than one slice."""
    only = "a job has one slice, because NCCL connects no slices; for more, use whole GPUs"
    if STAGES[wanted.stage].one_process:
        yield f"--gpu-slice: got {wanted.gpu_slice}; {wanted.stage} uses no GPU"
    if wanted.gpus_per_node not in (None, 1):
        yield f"--gpus-per-node: got {wanted.gpus_per_node}; {only}"
    if wanted.nodes not in (None, "1"):
        yield f"NODES: got {wanted.nodes}; {only}"


def _on_one_slice(wanted: EksWanted) -> EksWanted:
    """Return the options with the size of a job on a slice: one pod with one process."""
    if wanted.gpu_slice is None:
        return wanted
    return replace(wanted, nodes="1", gpus_per_node=1)


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


def groups_of_type(
    cluster: EksCluster, wanted: str | None, gpu_slice: str | None = None
) -> list[EksInstanceGroup]:
    """Return groups of one instance type: the given one, or those of the first type with accelerators.

    A group of several types is alone, because a job finds its nodes by the group's name.

    Args:
        cluster: cluster file.
        wanted: name of the group; None chooses.
        gpu_slice: profile of the slice that a job has; None prefers groups with whole GPUs.
    """
    ordered = sorted(
        cluster.instance_groups,
        key=lambda group: (
            group.hardware.num_accelerators == 0,
            group.mig_profile != gpu_slice,
        ),
    )
    if wanted is not None:
        return [group for group in ordered if group.name == wanted]
    first = ordered[0]
    if first.instance_types:
        return [first]
    return [
        group
        for group in ordered
        if (group.instance_type, group.mig_profile) == (first.instance_type, first.mig_profile)
    ]


def group_problems(cluster: EksCluster, wanted: str | None) -> Iterator[str]:
    """Yield what is wrong with the value of ``--group``."""
    names = [group.name for group in cluster.instance_groups]
    if wanted is not None and wanted not in names:
        yield f"--group: got {wanted}; the cluster file has {', '.join(names)}"


def node_labels(groups: Sequence[EksInstanceGroup], *, by_name: bool) -> dict[str, str]:
    """Return node labels that select groups of one instance type; ``by_name`` selects a single group.

    A group of several types is always selected by its name.
    """
    labels = {}
    if groups[0].instance_type:
        labels[INSTANCE_TYPE_LABEL] = groups[0].instance_type
    if by_name or groups[0].instance_types:
        labels[GROUP_LABEL] = groups[0].name
    if groups[0].gpu_slice:
        labels[CONFIG_LABEL] = groups[0].gpu_slice.layout
        labels[STATE_LABEL] = STATE_DONE
    if all(group.deep_health_checks for group in groups):
        labels[DEEP_HEALTH_LABEL] = "Passed"
    return labels


def preferred_groups(groups: Sequence[EksInstanceGroup]) -> dict[str, int]:
    """Return the preference of pods for groups, by how the capacity of each is bought.

    It is empty if the groups are bought alike.
    """
    if len({group.bought_as for group in groups}) == 1:
        return {}
    wanted = {group.name: PREFERENCE[group.bought_as] for group in groups}
    return {name: weight for name, weight in wanted.items() if weight}


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


def _quota(
    cluster: EksCluster, team_name: str | None, group: EksInstanceGroup, wanted: EksWanted
) -> Quota | None:
    """Return the nodes or slices of a team's quota, without and with borrowed ones; None without a quota."""
    team = _team_named(cluster, team_name)
    if team is None:
        return None
    own = _amount(team.quota, group, wanted)
    # A limit of CPUs and memory alone says nothing about nodes.
    limits = [
        limit
        for limit in team.borrow_limits
        if limit.instance_type in group.types
        and (limit.num_instances or limit.num_accelerators or limit.num_slices)
    ]
    may_borrow = team.sharing == "lend_and_borrow"
    if not own and not limits:
        has_others = any(part.instance_type in group.types for part in team.quota)
        if may_borrow or wanted.gpu_slice is None or not has_others:
            return None  # such a team uses what is lent, which only Kueue knows
    limit = _amount(limits, group, wanted) if limits else None
    return Quota(own=own, with_borrowed=math.floor(_with_borrowed(team, own, limit)))


def _with_borrowed(team: Team, own: float, limit: float | None) -> float:
    """Return an amount of a team's quota with all that the team may borrow.

    Args:
        team: team of the cluster file.
        own: amount of the quota.
        limit: most that the team may borrow; None if its limit in percent applies.
    """
    if team.sharing != "lend_and_borrow":
        return own
    if limit is None:
        limit = own * (team.borrow_limit_percent or BORROW_LIMIT_PERCENT) / 100
    return own + limit


def _team_named(cluster: EksCluster, name: str | None) -> Team | None:
    return next((found for found in cluster.teams if found.name == name), None)


def _amount(amounts: Sequence[ComputeAmount], group: EksInstanceGroup, wanted: EksWanted) -> int:
    """Return the whole nodes of a group's types in quotas, or the slices that the job wants."""
    of_type = [amount for amount in amounts if amount.instance_type in group.types]
    if wanted.gpu_slice is not None:
        return sum(
            amount.num_slices or 0 for amount in of_type if amount.mig_profile == wanted.gpu_slice
        )
    per_node = max(1, group.hardware.num_accelerators)
    return sum(
        (amount.num_instances or 0) + (amount.num_accelerators or 0) // per_node
        for amount in of_type
    )


def _available(groups: Sequence[EksInstanceGroup], quota: Quota | None) -> AvailableNodes:
    return AvailableNodes(
        number=sum(group.max_instances or group.num_instances for group in groups),
        name=", ".join(group.name for group in groups),
        own=quota.own if quota else None,
    )
