"""Check of an accounting database that the cluster file names instead of a new one."""

from collections.abc import Iterator

from config.slurm_cluster import SlurmCluster
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws


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
