"""Checks of Slurm's accounting database: the class of a new one, and one that the cluster file names."""

from collections.abc import Iterator

from config.cluster import zone_ids
from config.slurm_cluster import MARIADB_VERSION, SlurmCluster
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed

DATABASE = Subject("database")
NUM_ZONES = 2
"""Zones of the database's subnets, the network's first."""


def check_database_class(aws: ReadOnlyAws, cluster: SlurmCluster) -> Iterator[Finding]:
    database = cluster.accounting_database
    if database is None or database.existing or is_deployed(aws, cluster, "storage"):
        return
    options = aws.items(
        "rds",
        "describe_orderable_db_instance_options",
        "OrderableDBInstanceOptions",
        Engine="mariadb",
        EngineVersion=MARIADB_VERSION,
        DBInstanceClass=database.instance_class,
    )
    names = {zone["Name"] for option in options for zone in option["AvailabilityZones"]}
    zones = {
        zone["ZoneId"]: zone["ZoneName"]
        for zone in aws.call("ec2", "describe_availability_zones")["AvailabilityZones"]
    }
    offered = {zone_id for zone_id, name in zones.items() if name in names}
    # Another check reports zones that the account lacks.
    wanted = [zone for zone in zone_ids(cluster)[:NUM_ZONES] if zone in zones]
    what = f"{database.instance_class} with MariaDB {MARIADB_VERSION}"
    # RDS needs a zone for the instance, and both for a standby.
    missing = [zone for zone in wanted if zone not in offered]
    if missing and (database.multi_az or missing == wanted):
        where = ", ".join(sorted(offered)) or f"no zone of {cluster.region}"
        yield DATABASE.fail(
            f"RDS does not offer {what} in {', '.join(missing)}; it is offered in {where}",
            "set accounting_database.instance_class to one that `aws rds "
            "describe-orderable-db-instance-options --engine mariadb` prints for these zones",
        )
    else:
        yield DATABASE.ok(f"RDS offers {what}")


def check_existing_database(aws: ReadOnlyAws, cluster: SlurmCluster) -> Iterator[Finding]:
    """Check the database, its secret, and that its security group is the one of the file."""
    database = cluster.accounting_database
    if database is None or database.existing is None:
        return
    existing = database.existing
    subject = Subject(f"database {existing.endpoint.partition('.')[0]}")
    if aws.find("secretsmanager", "describe_secret", SecretId=existing.secret_arn) is None:
        yield subject.fail(
            f"the secret {existing.secret_arn} does not exist",
            "set accounting_database.existing.secret_arn to the secret of its user",
        )
    found = next(
        (
            instance
            for instance in aws.items("rds", "describe_db_instances", "DBInstances")
            if instance.get("Endpoint", {}).get("Address") == existing.endpoint
        ),
        None,
    )
    if found is None:
        yield subject.warn(
            f"RDS has no database with the address {existing.endpoint} in {cluster.region}",
            "make sure that the address is right, and that the nodes reach it on port 3306",
        )
        return
    groups = [group["VpcSecurityGroupId"] for group in found.get("VpcSecurityGroups", [])]
    wanted = existing.security_group_id
    if found["DBInstanceStatus"] != "available":
        yield subject.fail(f"is {found['DBInstanceStatus']}", "wait until it is available")
    elif wanted and wanted not in groups:
        yield subject.fail(
            f"its security groups are {', '.join(groups)}, the file says {wanted}",
            f"set accounting_database.existing.security_group_id to {groups[0] if groups else 'null'}",
        )
    else:
        yield subject.ok("is available")
