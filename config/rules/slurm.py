"""Rules for Slurm clusters: instance groups and their roles, node setup, and the accounting database."""

from collections.abc import Iterator

from config.cluster import zone_ids
from config.facts.instance_catalogue import known
from config.reading.violation import Violation
from config.rules.rule import SlurmGroupRule, SlurmRule, group_path, has_closed_network
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
            yield Violation(
                path, group.partition, "only worker groups have a partition", "remove it"
            )
        # In slurm.conf, PartitionName=DEFAULT sets the defaults of later lines and creates no partition.
        if group.partition and group.partition.lower() == "default":
            yield Violation(
                path, group.partition, "Slurm reserves this name", "set another, such as gpu"
            )


def controllers_are_updated_by_hand(cluster: SlurmCluster) -> Iterator[Violation]:
    """Refuse automatic updates of the controller, because a new image has a new root volume.

    Slurm's state and accounting without a database are on the old one. They are saved by hand first.
    """
    for group in _with_role(cluster, "controller"):
        for name, off in (("auto_patch", "none"), ("scheduled_update", None)):
            value = getattr(group, name)
            if value != off:
                yield Violation(
                    group_path(group, name),
                    value,
                    "an automatic update of the controller would lose the queue of jobs",
                    "remove it, and use `make patch` as docs/patching.md explains",
                )


def _accelerator(group: SlurmInstanceGroup) -> str | None:
    found = (instance.accelerator for instance in known(group.types))
    return next((name for name in found if name), None)


def _with_role(cluster: SlurmCluster, role: str) -> list[SlurmInstanceGroup]:
    return [group for group in cluster.instance_groups if group.role == role]


def _listed(cluster: SlurmCluster, role: str) -> str:
    return ", ".join(group.name for group in _with_role(cluster, role)) or f"no {role} group"


HOMES = "/home"
"""Directory of homes on the Lustre file system, without ``storage.home``."""


def _exports_homes(cluster: SlurmCluster) -> bool:
    path = cluster.storage.data_bucket.lustre_path
    has_users = bool(cluster.access.users)
    on_lustre = has_users and cluster.storage.home is None and cluster.storage.lustre is not None
    return on_lustre and f"{path}/".startswith(f"{HOMES}/")


_GRAVITON = ("large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge")
_XEON_5 = (*_GRAVITON, "24xlarge")
_XEON_6 = (*_XEON_5, "32xlarge")
_UP_TO_48 = (*_XEON_5, "48xlarge")
_BURSTABLE = ("micro", "small", "medium", "large", "xlarge", "2xlarge")
DATABASE_SIZES = {
    **dict.fromkeys(("t3", "t4g"), _BURSTABLE),
    **dict.fromkeys(("m6g", "m6gd", "m7g", "r6g", "r6gd", "r7g", "x2g"), _GRAVITON),
    **dict.fromkeys(("m5", "m5d", "r5", "r5b", "r5d"), _XEON_5),
    **dict.fromkeys(("m6i", "m6id", "m6idn", "m6in", "r6i", "r6id", "r6idn", "r6in"), _XEON_6),
    **dict.fromkeys(("m7i", "m8a", "m8g", "m8gd", "m9g", "r7i", "r8a", "r8g", "r8gd"), _UP_TO_48),
    "x2iedn": ("xlarge", "2xlarge", "4xlarge", "8xlarge", "16xlarge", "24xlarge", "32xlarge"),
}
"""Sizes per family of RDS classes that run MariaDB 11.4 in at least one region."""


def database_class_runs_mariadb(cluster: SlurmCluster) -> Iterator[Violation]:
    if not cluster.accounting_database:
        return
    path = "accounting_database.instance_class"
    name = cluster.accounting_database.instance_class
    _, family, size = name.split(".")
    if family not in DATABASE_SIZES:
        allowed = f"MariaDB on RDS runs on classes of {', '.join(DATABASE_SIZES)}"
        yield Violation(path, name, allowed, "set one of these, such as db.t4g.medium")
    elif size not in DATABASE_SIZES[family]:
        sizes = DATABASE_SIZES[family]
        yield Violation(
            path,
            name,
            f"db.{family} has {', '.join(sizes)}",
            f"set one, such as db.{family}.{sizes[0]}",
        )


RULES = (
    # In `make connect NODE=head`, head is the login node or the controller.
    # The word is taken in our own tools, which would connect to another machine than meant.
    SlurmGroupRule(
        "name",
        lambda _, group: group.name == "head",
        "make connect uses this name for the login node or the controller",
        "set another name, such as {group.role}",
    ),
    # slurm.conf names one primary controller, which HyperPod takes from the group of this type.
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
    # slurmctld runs once here: a standby needs shared state that the stacks do not set up.
    SlurmGroupRule(
        "num_instances",
        lambda _, group: group.role == "controller" and group.num_instances != 1,
        "there is one controller node",
        "set 1",
    ),
    # HyperPod waits for one login node at the creation; `make connect` and ssh settings address one group.
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
    # Without a partition slurmctld schedules nothing, and the file describes no cluster for training.
    SlurmRule(
        "instance_groups",
        lambda cluster: not _with_role(cluster, "worker"),
        "Slurm runs jobs on groups with role worker only",
        "add one; it may have num_instances: 0",
        got="no worker group",
    ),
    partitions_belong_to_workers,
    # The one controller is always required (rule above), so the field would have no effect.
    SlurmGroupRule(
        "min_instances",
        lambda _, group: group.role == "controller" and group.min_instances is not None,
        "no cluster is in service without its controller",
        "remove it",
    ),
    controllers_are_updated_by_hand,
    # A reclaimed controller would lose the queue, and a login node people's sessions.
    SlurmGroupRule(
        "capacity",
        lambda _, group: group.role != "worker" and group.capacity == "spot",
        "spot instances may be removed at any time, together with what runs on the {group.role}",
        "set on_demand",
    ),
    # Slurm places jobs on workers only.
    SlurmGroupRule(
        "weight",
        lambda _, group: group.role != "worker" and group.weight is not None,
        "no jobs run on the {group.role}, so its nodes have no order",
        "remove it",
    ),
    # Login nodes may have a GPU: people try things there.
    SlurmGroupRule(
        "instance_type",
        lambda _, group: group.role == "controller" and _accelerator(group),
        lambda _, group: f"the controller runs no jobs, so its {_accelerator(group)} would be idle",
        "set a type without accelerators, such as ml.m5.large",
    ),
    # Source: SageMaker developer guide, "Deep health checks" of Slurm clusters.
    SlurmGroupRule(
        "deep_health_checks",
        lambda _, group: group.role != "worker" and group.deep_health_checks,
        "only worker nodes are checked",
        "remove it",
    ),
    # Nodes fetch only software for metrics. All else, including CloudWatch's agent, is on the image.
    SlurmRule(
        "node_setup.downloads",
        lambda cluster: (
            has_closed_network(cluster)
            and cluster.prometheus
            and cluster.node_setup.downloads == "internet"
        ),
        "nodes in a closed network (network.internet: none) get the software for prometheus, exporters and"
        " collector, only from the artifact bucket",
        "set artifact_bucket, and run `make mirror-downloads` before nodes start; or prometheus to false",
    ),
    # The image's own user submits no jobs, so it would be locked out, even of nodes that it must repair.
    SlurmRule(
        "node_setup.pam_slurm_adopt",
        lambda cluster: cluster.node_setup.pam_slurm_adopt and not cluster.access.users,
        "it keeps users off nodes where they have no job, and the file names no users",
        "add access.users, or set false",
    ),
    # Homes contain private keys and passwords, and other people read the data bucket.
    SlurmRule(
        "storage.data_bucket.lustre_path",
        _exports_homes,
        f"without storage.home the users' homes are in {HOMES} of the Lustre file system, and would be"
        " copied to the bucket",
        "set another directory, such as /data, or add storage.home",
    ),
    # An RDS subnet group spans at least two zones, even if the instance does not.
    SlurmRule(
        "accounting_database",
        lambda cluster: cluster.accounting_database and len(set(zone_ids(cluster))) < 2,
        "a database needs subnets in two zones",
        "add a second zone to the network, or remove accounting_database",
        got=lambda cluster: f"a network in {zone_ids(cluster)[0]} only",
    ),
    # RDS refuses others (DescribeOrderableDBInstanceOptions); preflight asks it for the region.
    database_class_runs_mariadb,
    # Source: API reference of CreateCluster, ``AccountingDatabase``.
    SlurmRule(
        "continuous_provisioning",
        lambda cluster: cluster.accounting_database and not cluster.continuous_provisioning,
        "HyperPod takes an accounting database only with continuous provisioning",
        "set true, or remove accounting_database",
    ),
)
