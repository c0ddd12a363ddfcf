"""Quotas of teams that bound the pods of a job or a service."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from config.eks_cluster import EksCluster, EksInstanceGroup
from config.task_governance import BORROW_LIMIT_PERCENT, Quota, Team


@dataclass(frozen=True, kw_only=True)
class TeamQuota:
    """Number of a job's pods that the quota of a team admits."""

    own: int
    """Number in the team's quota."""
    with_borrowed: int
    """Number with all that the team may borrow."""
    text: str
    """Both numbers, for messages."""


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


def team_named(cluster: EksCluster, name: str | None) -> Team | None:
    """Return the team; None if there is none of this name."""
    return next((found for found in cluster.teams if found.name == name), None)


def team_quota(
    cluster: EksCluster,
    team_name: str | None,
    group: EksInstanceGroup,
    *,
    accelerators: int,
    gpu_slice: str | None,
) -> TeamQuota | None:
    """Return how many pods the quota of a team admits; None without a quota of such devices.

    Args:
        cluster: cluster file.
        team_name: team of the pods; None if they count against no quota.
        group: group of the pods.
        accelerators: accelerators or slices of each pod; without any, a pod has a node for itself.
        gpu_slice: profile of the pods' slices; None for whole accelerators.
    """
    team = team_named(cluster, team_name)
    if team is None:
        return None
    per_node = max(1, group.hardware.num_accelerators)
    per_pod = accelerators or per_node
    # Kueue gives all pods of a job one type, so the quotas of several types do not add up.
    quotas = [
        found
        for name in group.types
        if (found := _quota_of_type(team, name, per_node, per_pod, gpu_slice)) is not None
    ]
    return max(quotas, key=lambda quota: (quota.with_borrowed, quota.own), default=None)


def _quota_of_type(
    team: Team, instance_type: str, per_node: int, per_pod: int, gpu_slice: str | None
) -> TeamQuota | None:
    """Return how many pods a team's quota of one instance type admits.

    Args:
        team: team of the pods.
        instance_type: name of the type.
        per_node: accelerators of a node; 1 for a type without accelerators.
        per_pod: accelerators or slices of a pod.
        gpu_slice: profile of the slices; None for whole accelerators.

    Returns: None without devices in the quota and without a limit. Such a team uses what is lent, which only
        Kueue knows, or nothing, which ``quota_problems`` reports.
    """
    own = _devices(team.quota, instance_type, per_node, gpu_slice)
    # A limit of CPUs and memory alone says nothing about devices.
    limits = [
        limit
        for limit in team.borrow_limits
        if limit.instance_type == instance_type
        and (limit.num_instances or limit.num_accelerators or limit.num_slices)
    ]
    if not own and not limits:
        return None
    limit = _devices(limits, instance_type, per_node, gpu_slice) if limits else None
    most = math.floor(_with_borrowed(team, own, limit))
    text = f"{own // per_pod} node(s), {most // per_pod} with all that it may borrow"
    if per_pod != per_node or own % per_node:
        text = (
            f"{own} accelerator(s), {most} with all that it may borrow; each node takes {per_pod}"
        )
    return TeamQuota(own=own // per_pod, with_borrowed=most // per_pod, text=text)


def _devices(
    amounts: Sequence[Quota], instance_type: str, per_node: int, gpu_slice: str | None
) -> int:
    """Return the accelerators of quotas, or the slices; nodes of a type without accelerators."""
    of_type = [amount for amount in amounts if amount.instance_type == instance_type]
    if gpu_slice is not None:
        return sum(amount.num_slices or 0 for amount in of_type if amount.mig_profile == gpu_slice)
    return sum(
        (amount.num_instances or 0) * per_node + (amount.num_accelerators or 0)
        for amount in of_type
    )


def may_borrow(team: Team) -> bool:
    return team.sharing == "lend_and_borrow"


def _with_borrowed(team: Team, own: float, limit: float | None) -> float:
    """Return an amount of a team's quota with all that the team may borrow.

    Args:
        team: team of the cluster file.
        own: amount of the quota.
        limit: most that the team may borrow; None if its limit in percent applies.
    """
    if not may_borrow(team):
        return own
    if limit is None:
        limit = own * (team.borrow_limit_percent or BORROW_LIMIT_PERCENT) / 100
    return own + limit


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
    team = team_named(cluster, team_name)
    if team is None:
        return
    types = groups[0].types
    if not may_borrow(team):
        types = [name for name in types if any(name == part.instance_type for part in team.quota)]
        lacking = _lacking(team, types, groups[0], request)
        if lacking:
            yield lacking
            return
    # Kueue gives all pods of a job one type, so one that admits them suffices.
    yield from min((list(_share_problems(team, name, request)) for name in types), key=len)


def _lacking(
    team: Team, types: Sequence[str], group: EksInstanceGroup, request: PodsRequest
) -> str | None:
    """Return what the quota of a team that borrows nothing does not have at all.

    Args:
        team: team of the pods.
        types: instance types of the group that the quota has.
        group: group of the pods.
        request: request of the pods.
    """
    borrows_none = f"with sharing: {team.sharing} it borrows none"
    if not types:
        return (
            f"--team: got {team.name}; its quota has no {group.types_text}, and {borrows_none}; add a quota "
            "of this type, or give another --team or --group"
        )
    if any(_with_devices(team.quota, name, request) for name in types):
        return None
    if request.gpu_slice is not None:
        return (
            f"--gpu-slice: got {request.gpu_slice}; the team's quota has no such slice, and it may borrow "
            "none; add num_slices of this mig_profile, or give another --team"
        )
    return (
        f"--team: got {team.name}; its quota of {group.types_text} has no whole "
        f"{group.hardware.accelerator}, and {borrows_none}; add num_accelerators, or give another --team"
    )


def _share_problems(team: Team, instance_type: str, request: PodsRequest) -> Iterator[str]:
    """Yield which of CPUs and memory of the pods exceed the team's quota of one instance type."""
    own = _with_devices(team.quota, instance_type, request)
    # A limit of CPUs and memory alone adds to the CPUs and memory of the team's own devices.
    limits = [found for found in team.borrow_limits if found.instance_type == instance_type]
    if not own:
        limits = _with_devices(limits, instance_type, request)
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
                f"team's quota of {instance_type} has {amount:g}, {most:g} with all that it may borrow; "
                f"raise {field} in the cluster file, or {request.remedy}"
            )


def _with_devices(
    amounts: Sequence[Quota], instance_type: str, request: PodsRequest
) -> list[Quota]:
    """Return the amounts of an instance type that have devices as the pods want them.

    A team without such devices uses what is lent, which only Kueue knows.
    """
    of_type = [found for found in amounts if found.instance_type == instance_type]
    if not request.has_accelerators:
        return of_type
    if request.gpu_slice is not None:
        return [found for found in of_type if found.mig_profile == request.gpu_slice]
    return [found for found in of_type if found.num_instances or found.num_accelerators]
