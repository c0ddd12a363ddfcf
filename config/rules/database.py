"""Rules of RDS for Slurm's accounting database."""

from collections.abc import Iterator

from config.cluster import zone_ids
from config.reading.violation import Violation
from config.rules.rule import SlurmRule
from config.slurm_cluster import SlurmCluster

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
    path, name = "accounting_database.instance_class", cluster.accounting_database.instance_class
    _, family, size = name.split(".")
    if family not in DATABASE_SIZES:
        allowed = f"MariaDB on RDS runs on classes of {', '.join(DATABASE_SIZES)}"
        yield Violation(path, name, allowed, "set one of these, such as db.t4g.medium")
    elif size not in DATABASE_SIZES[family]:
        sizes = DATABASE_SIZES[family]
        yield Violation(
            path, name, f"db.{family} has {', '.join(sizes)}", f"set one, such as db.{family}.{sizes[0]}"
        )


RULES = (
    # An RDS subnet group spans at least two zones, even if the instance does not.
    SlurmRule(
        "accounting_database",
        lambda cluster: cluster.accounting_database and len(set(zone_ids(cluster))) < 2,
        "a database needs subnets in two zones",
        "add a second zone to the network, or remove accounting_database",
        got=lambda cluster: f"a network in {zone_ids(cluster)[0]} only",
    ),
    database_class_runs_mariadb,
    # Source: API reference of CreateCluster, ``AccountingDatabase``.
    SlurmRule(
        "continuous_provisioning",
        lambda cluster: cluster.accounting_database and not cluster.continuous_provisioning,
        "HyperPod takes an accounting database only with continuous provisioning",
        "set true, or remove accounting_database",
    ),
)
