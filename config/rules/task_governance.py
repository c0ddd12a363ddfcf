"""Rules for teams, quotas and priority classes of task governance."""

from collections import Counter
from collections.abc import Iterator

from config.eks_cluster import EksCluster
from config.facts.instance_catalogue import INSTANCE_TYPES
from config.reading.violation import Violation
from config.rules.rule import repetitions
from config.stack_division import MAX_RESOURCES, most_teams
from config.task_governance import Quota


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


def quotas_have_one_measure(cluster: EksCluster) -> Iterator[Violation]:
    for path, quota in _quotas(cluster):
        has_instances = quota.num_instances is not None
        has_accelerators = quota.num_accelerators is not None
        allowed = "a quota is in instances or in accelerators"
        if has_instances and has_accelerators:
            yield Violation(path, "both measures", allowed, "remove one of the two")
        if not has_instances and not has_accelerators:
            got = "neither num_instances nor num_accelerators"
            yield Violation(path, got, allowed, "add num_instances")


def quotas_are_of_types_that_are_there(cluster: EksCluster) -> Iterator[Violation]:
    types = list(dict.fromkeys(group.instance_type for group in cluster.instance_groups))
    if not all(name in INSTANCE_TYPES for name in types):
        return  # a wrong type is reported at its group
    for path, quota in _quotas(cluster):
        instance = INSTANCE_TYPES.get(quota.instance_type)
        if quota.instance_type not in types:
            yield Violation(
                f"{path}.instance_type",
                quota.instance_type,
                f"the types of the instance groups are {', '.join(types)}",
                "set one of these, or add a group of that type",
            )
        elif instance and quota.num_accelerators is not None and not instance.accelerator:
            yield Violation(
                f"{path}.num_accelerators",
                quota.num_accelerators,
                f"{instance.name} has no accelerators",
                "set num_instances instead",
            )


def quotas_name_each_type_once(cluster: EksCluster) -> Iterator[Violation]:
    for team in cluster.teams:
        types = [quota.instance_type for quota in team.quota]
        path = f"task_governance.teams[{team.name}].quota"
        earlier = "an earlier quota of the team has this type"
        yield from repetitions(path, types, earlier, "merge the two", key=".instance_type")


def quotas_fit_into_the_cluster(cluster: EksCluster) -> Iterator[Violation]:
    """Require enough nodes for all quotas together, because each quota is guaranteed."""
    there: Counter[str] = Counter()
    for group in cluster.instance_groups:
        there[group.instance_type] += max(group.num_instances, group.max_instances or 0)
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


def shares_have_an_effect(cluster: EksCluster) -> Iterator[Violation]:
    for team in cluster.teams:
        if team.borrow_limit_percent is not None and team.sharing != "lend_and_borrow":
            yield Violation(
                f"task_governance.teams[{team.name}].borrow_limit_percent",
                team.borrow_limit_percent,
                f"the team borrows nothing with sharing: {team.sharing}",
                "remove it, or set sharing to lend_and_borrow",
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
    # ComputeQuotaResourceConfig takes Count or Accelerators (API reference).
    quotas_have_one_measure,
    # Kueue has no flavor for a type that no group has, so no one could ever use the quota.
    quotas_are_of_types_that_are_there,
    # A quota is the number for its type, so which of two entries applies would be unclear.
    quotas_name_each_type_once,
    quotas_fit_into_the_cluster,
    # The values would have no effect, so people would wait for nodes in vain.
    shares_have_an_effect,
)
