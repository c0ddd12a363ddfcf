"""Rules for teams, quotas and priority classes of task governance."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil

from config.eks_cluster import EksCluster, EksInstanceGroup
from config.facts.gpu_slices import NO_QUOTA_TYPES, slices_of
from config.facts.instance_catalogue import INSTANCE_TYPES
from config.reading.violation import Violation
from config.rules.rule import repetitions
from config.stack_division import MAX_RESOURCES, most_teams
from config.task_governance import Quota

_MEASURES = ("num_instances", "num_accelerators", "num_slices")
_SHARES = ("vcpus", "memory_gib")


def names_are_distinct(cluster: EksCluster) -> Iterator[Violation]:
    governance = cluster.task_governance
    if not governance:
        return
    for kind, items in (
        ("teams", governance.teams),
        ("priority_classes", governance.priority_classes),
    ):
        earlier = f"an earlier item of task_governance.{kind} has this name"
        fix = "set another name, or remove one of the two"
        names = [item.name for item in items]
        yield from repetitions(f"task_governance.{kind}", names, earlier, fix, key=".name")


def stacks_hold_the_teams(cluster: EksCluster) -> Iterator[Violation]:
    most = most_teams(cluster.teams)
    if len(cluster.teams) > most:
        yield Violation(
            "task_governance.teams",
            f"{len(cluster.teams)} teams",
            f"{most} of these fit into the cluster's stacks, because CloudFormation accepts {MAX_RESOURCES}"
            " resources per stack",
            f"remove {len(cluster.teams) - most}",
        )


def amounts_have_one_measure(cluster: EksCluster) -> Iterator[Violation]:
    for path, amount in _amounts(cluster):
        measures = [name for name in _MEASURES if getattr(amount, name) is not None]
        shares = [name for name in _SHARES if getattr(amount, name) is not None]
        if not measures and not shares:
            yield Violation(
                path,
                f"none of {', '.join(_MEASURES)}",
                "a quota is in instances, accelerators, slices of GPUs, or vCPUs and memory",
                "add num_instances",
            )
        elif len(measures) > 1:
            yield Violation(
                path,
                " and ".join(measures),
                "a quota has one of these measures",
                "remove all but one",
            )
        elif measures == ["num_instances"] and shares:
            yield Violation(
                f"{path}.{shares[0]}",
                getattr(amount, shares[0]),
                "num_instances are whole nodes with all of their CPUs and memory",
                "remove it, or set num_accelerators in place of num_instances",
            )


def amounts_are_of_types_that_are_there(cluster: EksCluster) -> Iterator[Violation]:
    types = list(dict.fromkeys(name for group in cluster.instance_groups for name in group.types))
    if not all(name in INSTANCE_TYPES for name in types):
        return  # a wrong type is reported at its group
    for path, amount in _amounts(cluster):
        instance = INSTANCE_TYPES.get(amount.instance_type)
        if amount.instance_type not in types:
            yield Violation(
                f"{path}.instance_type",
                amount.instance_type,
                f"the types of the instance groups are {', '.join(types)}",
                "set one of these, or add a group of that type",
            )
        elif instance and amount.num_accelerators is not None and not instance.accelerator:
            yield Violation(
                f"{path}.num_accelerators",
                amount.num_accelerators,
                f"{instance.name} has no accelerators",
                "set num_instances instead",
            )


def slices_are_there(cluster: EksCluster) -> Iterator[Violation]:
    """Require that slices of a quota have a profile, and that a group of the type is divided into it."""
    for path, amount in _amounts(cluster):
        has_number = amount.num_slices is not None
        if has_number != (amount.mig_profile is not None):
            missing = "mig_profile" if has_number else "num_slices"
            given = "num_slices" if has_number else "mig_profile"
            yield Violation(
                f"{path}.{given}",
                getattr(amount, given),
                f"slices are counted by profile, and {missing} is missing",
                f"add {missing}, or remove {given}",
            )
        groups = [group for group in cluster.instance_groups if amount.instance_type in group.types]
        profiles = list(dict.fromkeys(group.mig_profile for group in groups if group.mig_profile))
        if amount.mig_profile is None:
            if not has_number and groups and all(group.mig_profile for group in groups):
                yield Violation(
                    path,
                    f"a quota of {amount.instance_type} without slices",
                    f"groups of this type have slices of {', '.join(profiles)}",
                    "set num_slices and mig_profile",
                )
        elif amount.mig_profile not in profiles:
            yield Violation(
                f"{path}.mig_profile",
                amount.mig_profile,
                f"groups of {amount.instance_type} have "
                f"{'slices of ' + ', '.join(profiles) if profiles else 'whole GPUs'}",
                "set mig_profile of a group, or the profile of one here",
            )
        elif amount.instance_type in NO_QUOTA_TYPES:
            yield Violation(
                f"{path}.mig_profile",
                amount.mig_profile,
                f"SageMaker's quotas have no name for slices of {amount.instance_type}",
                "remove the quota; the jobs of a team without a quota have slices that others lend",
            )


def amounts_name_each_type_once(cluster: EksCluster) -> Iterator[Violation]:
    for team in cluster.teams:
        for field, what in (("quota", "quota"), ("borrow_limits", "limit")):
            types = [amount.instance_type for amount in getattr(team, field)]
            path = f"task_governance.teams[{team.name}].{field}"
            earlier = f"an earlier {what} of the team has this type"
            yield from repetitions(path, types, earlier, "merge the two", key=".instance_type")


def quotas_fit_into_the_cluster(cluster: EksCluster) -> Iterator[Violation]:
    """Require enough nodes for all quotas together, because each quota is guaranteed."""
    there: Counter[str] = Counter()
    for group in _groups_of_whole_gpus(cluster):
        for name in group.types:
            there[name] += _most_nodes(group)
    promised: Counter[str] = Counter()
    for _, quota in _quotas(cluster):
        if quota.instance_type in INSTANCE_TYPES and quota.instance_type in there:
            promised[quota.instance_type] += _accelerators_or_instances(quota)
    for name, amount in promised.items():
        per_instance = INSTANCE_TYPES[name].num_accelerators or 1
        if amount > there[name] * per_instance:
            unit = "accelerators" if INSTANCE_TYPES[name].accelerator else "instances"
            yield Violation(
                "task_governance.teams",
                f"quotas of {amount} {unit} of {name} together",
                f"the instance groups have {there[name] * per_instance}",
                "reduce the quotas, or add nodes",
            )


def slices_fit_into_the_cluster(cluster: EksCluster) -> Iterator[Violation]:
    there: Counter[tuple[str, str]] = Counter()
    for group in cluster.instance_groups:
        for name in group.types:
            found = slices_of(name).get(group.mig_profile or "")
            if found:
                there[name, found.profile] += found.per_node(INSTANCE_TYPES[name]) * _most_nodes(
                    group
                )
    promised: Counter[tuple[str, str]] = Counter()
    for _, quota in _quotas(cluster):
        promised[quota.instance_type, quota.mig_profile or ""] += quota.num_slices or 0
    for kind, amount in promised.items():
        if kind in there and amount > there[kind]:
            name, profile = kind
            yield Violation(
                "task_governance.teams",
                f"quotas of {amount} slices {profile} of {name} together",
                f"the instance groups have {there[kind]}",
                "reduce the quotas, or add nodes",
            )


def cpus_and_memory_fit_into_the_cluster(cluster: EksCluster) -> Iterator[Violation]:
    """Check types with a quota that states vCPUs or memory; the others are in proportion to what fits."""
    there: Counter[str] = Counter()
    for group in cluster.instance_groups:
        for name in group.types:
            there[name] += _most_nodes(group)
    for name in dict.fromkeys(quota.instance_type for _, quota in _quotas(cluster)):
        if name not in INSTANCE_TYPES or name not in there:
            continue
        instance = INSTANCE_TYPES[name]
        quotas = [quota for _, quota in _quotas(cluster) if quota.instance_type == name]
        for field, unit, of_node in (
            ("vcpus", "vCPUs", float(instance.vcpus)),
            ("memory_gib", "GiB of memory", instance.memory_gib),
        ):
            if all(getattr(quota, field) is None for quota in quotas):
                continue
            amount = sum(getattr(quota, f"all_{field}") for quota in quotas)
            if amount > there[name] * of_node:
                yield Violation(
                    "task_governance.teams",
                    f"quotas of {amount:g} {unit} of {name} together",
                    f"the instance groups have {there[name] * of_node:g}",
                    "reduce the quotas, or add nodes",
                )


def nodes_of_several_types_suffice(cluster: EksCluster) -> Iterator[Violation]:
    """Require that quotas of several types do not promise a node of a group twice.

    A node of such a group is of one type only. All groups are considered together, because a type may be in
    several of them.
    """
    groups = [
        group
        for group in _groups_of_whole_gpus(cluster)
        if all(name in INSTANCE_TYPES for name in group.types)
    ]
    quotas = [quota for _, quota in _quotas(cluster) if quota.num_slices is None]
    nodes = _Nodes(groups)
    for name in dict.fromkeys(quota.instance_type for quota in quotas):
        if not nodes.have(name):
            continue  # reported with the types that are there
        needed = _num_nodes([quota for quota in quotas if quota.instance_type == name])
        crowded = nodes.promise(name, needed)
        # A quota beyond the nodes of its own type is reported there.
        if (
            crowded
            and any(group.instance_types for group in crowded)
            and nodes.at_most(name, needed)
        ):
            kinds = nodes.kinds_in(crowded)
            who = ", ".join(group.name for group in crowded)
            verb = f"group {who} has" if len(crowded) == 1 else f"groups {who} have"
            number = sum(nodes.promised[kind] for kind in kinds)
            yield Violation(
                "task_governance.teams",
                f"quotas of {number} nodes of {' or '.join(kinds)} together",
                f"{verb} {sum(map(_most_nodes, crowded))}, each of one of these types",
                "reduce the quotas, or add nodes",
            )
            return


class _Nodes:
    """Assignment of the nodes of groups to the instance types that quotas promise."""

    def __init__(self, groups: Sequence[EksInstanceGroup]) -> None:
        self._groups = {group.name: group for group in groups}
        self._free = Counter({group.name: _most_nodes(group) for group in groups})
        self._given: Counter[tuple[str, str]] = Counter()
        """Assigned nodes, by type and group."""
        self.promised: Counter[str] = Counter()
        """Promised nodes of each type."""

    def have(self, kind: str) -> bool:
        return any(kind in group.types for group in self._groups.values())

    def at_most(self, kind: str, number: int) -> bool:
        """Return whether the groups have this number of nodes that can be of one type."""
        groups = [group for group in self._groups.values() if kind in group.types]
        return number <= sum(_most_nodes(group) for group in groups)

    def kinds_in(self, groups: Sequence[EksInstanceGroup]) -> list[str]:
        """Return the promised types whose nodes are in these groups."""
        return [kind for kind in self.promised if any(kind in group.types for group in groups)]

    def promise(self, kind: str, number: int) -> list[EksInstanceGroup]:
        """Assign nodes of a type; return the groups that lack some, or an empty list."""
        self.promised[kind] += number
        left = number
        while left:
            seen: dict[str, None] = {}
            given = self._give(kind, left, seen)
            if not given:
                return [self._groups[name] for name in seen]
            left -= given
        return []

    def _give(self, kind: str, number: int, seen: dict[str, None]) -> int:
        """Assign some nodes of a type, and move other types to other groups for it; return how many.

        Args:
            kind: instance type.
            number: most nodes to assign.
            seen: groups that were tried, which this call extends.
        """
        for name, group in self._groups.items():
            if kind not in group.types or name in seen:
                continue
            seen[name] = None
            given = min(number, self._free[name])
            self._free[name] -= given
            for other in group.types:
                if given:
                    break
                if other != kind and self._given[other, name]:
                    given = self._give(other, min(number, self._given[other, name]), seen)
                    self._given[other, name] -= given
            self._given[kind, name] += given
            if given:
                return given
        return 0


def _num_nodes(quotas: Sequence[Quota]) -> int:
    """Return the nodes of one instance type that these quotas take together."""
    instance = INSTANCE_TYPES[quotas[0].instance_type]
    shares = (
        sum(map(_accelerators_or_instances, quotas)) / (instance.num_accelerators or 1),
        sum(quota.all_vcpus for quota in quotas) / instance.vcpus,
        sum(quota.all_memory_gib for quota in quotas) / instance.memory_gib,
    )
    # Sums of shares have an error of rounding.
    return ceil(round(max(shares), 6))


def shares_have_an_effect(cluster: EksCluster) -> Iterator[Violation]:
    for team in cluster.teams:
        if team.borrow_limit_percent is not None and team.sharing != "lend_and_borrow":
            yield Violation(
                f"task_governance.teams[{team.name}].borrow_limit_percent",
                team.borrow_limit_percent,
                f"the team borrows nothing with sharing: {team.sharing}",
                "remove it, or set sharing to lend_and_borrow",
            )
        if team.borrow_limits and team.sharing != "lend_and_borrow":
            yield Violation(
                f"task_governance.teams[{team.name}].borrow_limits",
                f"limits of {', '.join(limit.instance_type for limit in team.borrow_limits)}",
                f"the team borrows nothing with sharing: {team.sharing}",
                "remove them, or set sharing to lend_and_borrow",
            )
        if (
            team.fair_share_weight
            and cluster.task_governance
            and not cluster.task_governance.fair_share
        ):
            yield Violation(
                f"task_governance.teams[{team.name}].fair_share_weight",
                team.fair_share_weight,
                "with fair_share: false, idle nodes go to the first request",
                "remove it, or set task_governance.fair_share to true",
            )


def _quotas(cluster: EksCluster) -> Iterator[tuple[str, Quota]]:
    """Yield the path and the content of each quota."""
    for team in cluster.teams:
        for index, quota in enumerate(team.quota):
            yield f"task_governance.teams[{team.name}].quota[{index}]", quota


def _amounts(cluster: EksCluster) -> Iterator[tuple[str, Quota]]:
    """Yield the path and the content of each quota and each limit of borrowing."""
    yield from _quotas(cluster)
    for team in cluster.teams:
        for index, limit in enumerate(team.borrow_limits):
            yield f"task_governance.teams[{team.name}].borrow_limits[{index}]", limit


def _most_nodes(group: EksInstanceGroup) -> int:
    return max(group.num_instances, group.max_instances or 0)


def _groups_of_whole_gpus(cluster: EksCluster) -> list[EksInstanceGroup]:
    return [group for group in cluster.instance_groups if group.mig_profile is None]


def _accelerators_or_instances(quota: Quota) -> int:
    """Return the quota in accelerators, or in instances for a type without accelerators."""
    per_instance = INSTANCE_TYPES[quota.instance_type].num_accelerators
    if not per_instance:
        return quota.num_instances or 0
    return (quota.num_instances or 0) * per_instance + (quota.num_accelerators or 0)


RULES = (
    # Kueue finds queues and priorities by these names, and the later would replace the earlier.
    names_are_distinct,
    # The synthesis would end with a traceback, or the deployment with CloudFormation's refusal.
    stacks_hold_the_teams,
    # ComputeQuotaResourceConfig takes Count, Accelerators or AcceleratorPartition. VCpu and MemoryInGiB
    # replace the proportional share of the latter two (API reference).
    amounts_have_one_measure,
    # Kueue has no flavor for a type that no group has, so no one could ever use the quota.
    amounts_are_of_types_that_are_there,
    # AcceleratorPartitionConfig requires both members, and Kueue would have no such resource on any node.
    slices_are_there,
    # A quota is the number for its type, so which of two entries applies would be unclear.
    amounts_name_each_type_once,
    quotas_fit_into_the_cluster,
    nodes_of_several_types_suffice,
    # A guarantee beyond the cluster's slices would make Kueue admit pods that no node can take.
    slices_fit_into_the_cluster,
    cpus_and_memory_fit_into_the_cluster,
    # The values would have no effect, so people would wait for nodes in vain.
    shares_have_an_effect,
)
