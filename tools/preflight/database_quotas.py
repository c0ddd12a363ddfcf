"""RDS's quotas for the database of Slurm's accounting."""

from __future__ import annotations

from collections.abc import Iterator

from config.slurm_cluster import SlurmCluster
from config.stack_names import stack_names
from tools.preflight.finding import Finding
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import judge

SERVICE = "Amazon Relational Database Service (Amazon RDS)"
QUOTAS = {
    "DBInstances": "DB instances",
    "AllocatedStorage": "Total storage for all DB instances",
    "DBSubnetGroups": "DB subnet groups",
    "DBParameterGroups": "Parameter groups",
}
"""Names in Service Quotas, by those in RDS's own answer, which has values and use."""


def check_database_quotas(aws: ReadOnlyAws, cluster: SlurmCluster) -> Iterator[Finding]:
    """Nothing once it is there; it may be added to a cluster that is."""
    database = cluster.accounting_database
    if not database or _is_there(aws, cluster):
        return
    quotas = {
        quota["AccountQuotaName"]: quota
        for quota in aws.call("rds", "describe_account_attributes")["AccountQuotas"]
    }
    for name, shown in QUOTAS.items():
        quota = quotas.get(name)
        is_storage = name == "AllocatedStorage"
        yield judge(
            quota_name=shown,
            service=SERVICE,
            value=quota and quota["Max"],
            needed=database.storage_gib if is_storage else 1,
            used=quota["Used"] if quota else 0,
            unit="GiB" if is_storage else "",
        )


def _is_there(aws: ReadOnlyAws, cluster: SlurmCluster) -> bool:
    own = {"Key": "aws:cloudformation:stack-name", "Value": stack_names(cluster).storage}
    return any(
        own in found.get("TagList", []) for found in aws.items("rds", "describe_db_instances", "DBInstances")
    )
