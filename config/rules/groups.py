"""Which instance groups a Slurm cluster consists of, and what their roles allow."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import InstanceGroup, SlurmCluster
from config.rules.paths import group_path
from config.violation import Violation


def names_are_distinct(cluster: SlurmCluster) -> Iterator[Violation]:
    names = [group.name for group in cluster.instance_groups]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Violation(
                f"instance_groups[{index}].name",
                name,
                "it is the name of an earlier group",
                "set another name",
            )


def names_are_free(cluster: SlurmCluster) -> Iterator[Violation]:
    """`make connect NODE=head` means the login node or the controller."""
    for group in cluster.instance_groups:
        if group.name == "head":
            yield Violation(
                group_path(group, "name"),
                "head",
                "make connect keeps that name for the login node or the controller",
                f"set another name, as {group.role}",
            )


def one_controller(cluster: SlurmCluster) -> Iterator[Violation]:
    controllers = _with_role(cluster, "controller")
    if len(controllers) != 1:
        yield Violation(
            "instance_groups",
            _listed(controllers, "controller"),
            "a cluster has exactly one group with role controller",
            "add one" if not controllers else "set role to login or worker in the others, or remove them",
        )
    for group in controllers:
        if group.num_instances != 1:
            yield Violation(
                group_path(group, "num_instances"),
                group.num_instances,
                "there is one controller node",
                "set 1",
            )


def login_nodes(cluster: SlurmCluster) -> Iterator[Violation]:
    """A cluster with a login group is not in service before one of its nodes is."""
    groups = _with_role(cluster, "login")
    if len(groups) > 1:
        yield Violation(
            "instance_groups",
            _listed(groups, "login"),
            "a cluster has at most one group with role login",
            "merge them into one",
        )
    for group in groups:
        if group.num_instances == 0:
            yield Violation(
                group_path(group, "num_instances"),
                0,
                "a login group has at least one node",
                "set 1, or remove the group",
            )


def at_least_one_worker(cluster: SlurmCluster) -> Iterator[Violation]:
    if not _with_role(cluster, "worker"):
        yield Violation(
            "instance_groups",
            "no worker group",
            "Slurm runs jobs on groups with role worker only",
            "add one; it may have num_instances: 0",
        )


def partitions_belong_to_workers(cluster: SlurmCluster) -> Iterator[Violation]:
    """Worker groups may share one: Slurm's nodes of a partition need not be alike."""
    for group in cluster.instance_groups:
        path = group_path(group, "partition")
        if group.role == "worker" and group.partition is None:
            yield Violation(path, None, "a worker group belongs to a partition", "set its name, as gpu")
        if group.role != "worker" and group.partition is not None:
            yield Violation(path, group.partition, "only worker groups have one", "remove it")
        # slurm.conf: PartitionName=DEFAULT sets what later lines start from, and makes no partition.
        if group.partition and group.partition.lower() == "default":
            yield Violation(path, group.partition, "Slurm keeps that name to itself", "set another, as gpu")


def minimum_is_below_the_count(cluster: SlurmCluster) -> Iterator[Violation]:
    for group in cluster.instance_groups:
        if group.min_instances is not None and group.min_instances > group.num_instances:
            yield Violation(
                group_path(group, "min_instances"),
                group.min_instances,
                f"at most num_instances, {group.num_instances}, are allowed",
                f"set {group.num_instances} or less" if group.num_instances else "remove it",
            )


def controller_has_no_minimum(cluster: SlurmCluster) -> Iterator[Violation]:
    for group in _with_role(cluster, "controller"):
        if group.min_instances is not None:
            yield Violation(
                group_path(group, "min_instances"),
                group.min_instances,
                "no cluster is in service without its controller",
                "remove it",
            )


def spot_is_for_workers(cluster: SlurmCluster) -> Iterator[Violation]:
    for group in cluster.instance_groups:
        path = group_path(group, "capacity")
        if group.capacity != "spot":
            continue
        if group.role != "worker":
            yield Violation(
                path,
                "spot",
                f"spot instances are taken away at any time, and with the {group.role} what runs there",
                "set on_demand",
            )
        if group.training_plan_arn:
            yield Violation(
                path, "spot", "a training plan brings its own capacity", "set on_demand, or remove the plan"
            )


def plan_lies_in_the_region(cluster: SlurmCluster) -> Iterator[Violation]:
    for group in cluster.instance_groups:
        arn = group.training_plan_arn
        # arn:aws:sagemaker:<region>:<account>:training-plan/<name>
        if arn and arn.split(":")[3] != cluster.region:
            yield Violation(
                group_path(group, "training_plan_arn"),
                arn,
                f"a plan's capacity is in its own region, and the cluster is in {cluster.region}",
                f"set region to {arn.split(':')[3]}, or the ARN of a plan in {cluster.region}",
            )


def pinned_image_is_not_patched(cluster: SlurmCluster) -> Iterator[Violation]:
    for group in cluster.instance_groups:
        if group.image_id and group.auto_patch != "none":
            yield Violation(
                group_path(group, "auto_patch"),
                group.auto_patch,
                f"patching replaces the image, and image_id keeps it at {group.image_id}",
                "set none, or remove image_id",
            )


def _with_role(cluster: SlurmCluster, role: str) -> list[InstanceGroup]:
    return [group for group in cluster.instance_groups if group.role == role]


def _listed(groups: list[InstanceGroup], role: str) -> str:
    return ", ".join(group.name for group in groups) if groups else f"no {role} group"


RULES = (
    names_are_distinct,
    names_are_free,
    one_controller,
    login_nodes,
    at_least_one_worker,
    partitions_belong_to_workers,
    minimum_is_below_the_count,
    controller_has_no_minimum,
    spot_is_for_workers,
    plan_lies_in_the_region,
    pinned_image_is_not_patched,
)
