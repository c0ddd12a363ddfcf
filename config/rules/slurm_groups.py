"""Rules for the instance groups of a Slurm cluster and their roles."""

from collections.abc import Iterator

from config.facts.instance_catalogue import INSTANCE_TYPES
from config.reading.violation import Violation
from config.rules.rule import SlurmGroupRule, SlurmRule, group_path
from config.slurm_cluster import SlurmCluster, SlurmInstanceGroup


def partitions_belong_to_workers(cluster: SlurmCluster) -> Iterator[Violation]:
    """Require a partition of workers only; groups of different types may share one."""
    for group in cluster.instance_groups:
        path = group_path(group, "partition")
        if group.role == "worker" and group.partition is None:
            yield Violation(
                path, None, "a worker group belongs to a partition", "set its name, for example gpu"
            )
        if group.role != "worker" and group.partition is not None:
            yield Violation(path, group.partition, "only worker groups have a partition", "remove it")
        # In slurm.conf, PartitionName=DEFAULT sets the defaults of later lines and creates no partition.
        if group.partition and group.partition.lower() == "default":
            yield Violation(path, group.partition, "Slurm reserves this name", "set another, such as gpu")


def _accelerator(group: SlurmInstanceGroup) -> str | None:
    instance = INSTANCE_TYPES.get(group.instance_type)
    return instance.accelerator if instance else None


def _with_role(cluster: SlurmCluster, role: str) -> list[SlurmInstanceGroup]:
    return [group for group in cluster.instance_groups if group.role == role]


def _listed(cluster: SlurmCluster, role: str) -> str:
    return ", ".join(group.name for group in _with_role(cluster, role)) or f"no {role} group"


RULES = (
    # In `make connect NODE=head`, head is the login node or the controller.
    SlurmGroupRule(
        "name",
        lambda _, group: group.name == "head",
        "make connect uses this name for the login node or the controller",
        "set another name, such as {group.role}",
    ),
    SlurmRule(
        "instance_groups",
        lambda cluster: len(_with_role(cluster, "controller")) != 1,
        "a cluster has exactly one group with role controller",
        lambda cluster: (
            "set role to login or worker in the others, or remove them"
            if _with_role(cluster, "controller")
            else "add one"
        ),
        got=lambda cluster: _listed(cluster, "controller"),
    ),
    SlurmGroupRule(
        "num_instances",
        lambda _, group: group.role == "controller" and group.num_instances != 1,
        "there is one controller node",
        "set 1",
    ),
    SlurmRule(
        "instance_groups",
        lambda cluster: len(_with_role(cluster, "login")) > 1,
        "a cluster has at most one group with role login",
        "merge them into one",
        got=lambda cluster: _listed(cluster, "login"),
    ),
    # The cluster is not in service without a node of its login group.
    SlurmGroupRule(
        "num_instances",
        lambda _, group: group.role == "login" and group.num_instances == 0,
        "a login group has at least one node",
        "set 1, or remove the group",
    ),
    SlurmRule(
        "instance_groups",
        lambda cluster: not _with_role(cluster, "worker"),
        "Slurm runs jobs on groups with role worker only",
        "add one; it may have num_instances: 0",
        got="no worker group",
    ),
    partitions_belong_to_workers,
    SlurmGroupRule(
        "min_instances",
        lambda _, group: group.role == "controller" and group.min_instances is not None,
        "no cluster is in service without its controller",
        "remove it",
    ),
    SlurmGroupRule(
        "capacity",
        lambda _, group: group.role != "worker" and group.capacity == "spot",
        "spot instances may be removed at any time, together with what runs on the {group.role}",
        "set on_demand",
    ),
    # Login nodes may have a GPU: people try things there.
    SlurmGroupRule(
        "instance_type",
        lambda _, group: group.role == "controller" and _accelerator(group),
        lambda _, group: f"the controller runs no jobs, so its {_accelerator(group)} would be idle",
        "set a type without accelerators, such as ml.m5.12xlarge",
    ),
    # Source: SageMaker developer guide, "Deep health checks" of Slurm clusters.
    SlurmGroupRule(
        "deep_health_checks",
        lambda _, group: group.role != "worker" and group.deep_health_checks,
        "only worker nodes are checked",
        "remove it",
    ),
)
