"""Checks of the storage stack's quotas: FSx's for file systems, and RDS's for Slurm's accounting database."""

from collections.abc import Iterator

from config.cluster import Cluster
from config.resource_names import stack_names
from config.slurm_cluster import SlurmCluster
from config.storage import EFA_NOT_CONFIGURED
from tools.preflight.finding import Finding, warn
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import Quota, judge_quota

RDS = "Amazon Relational Database Service (Amazon RDS)"
DATABASE_QUOTAS = {
    "DBInstances": "DB instances",
    "AllocatedStorage": "Total storage for all DB instances",
    "DBSubnetGroups": "DB subnet groups",
    "DBParameterGroups": "Parameter groups",
}
"""Names in Service Quotas, by the names in RDS's response, which has values and use."""
SERVICE = "Amazon FSx"
LUSTRE_SYSTEMS = Quota("fsx", SERVICE, "Lustre Persistent_2 file systems", "L-FD6F2F22")
LUSTRE_CAPACITY = Quota("fsx", SERVICE, "Lustre Persistent_2 storage capacity", "L-8F1B9C74")
ZFS_SYSTEMS = Quota("fsx", SERVICE, "OpenZFS file systems", "L-59D0763F")
ZFS_CAPACITY = Quota("fsx", SERVICE, "OpenZFS SSD storage capacity", "L-88479C21")
ZFS_THROUGHPUT = Quota("fsx", SERVICE, "OpenZFS throughput capacity", "L-4EDE4065")


def check_storage_quotas(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    if cluster.storage.lustre.lacks_efa_client:
        yield warn("EFA to Lustre", EFA_NOT_CONFIGURED, "set storage.lustre.efa: false")
    own = _tag_of_the_stack(cluster)
    systems = aws.items("fsx", "describe_file_systems", "FileSystems")
    others = [system for system in systems if own not in system.get("Tags", [])]
    lustre = [
        system["StorageCapacity"]
        for system in others
        if system.get("LustreConfiguration", {}).get("DeploymentType") == "PERSISTENT_2"
    ]
    if not cluster.storage.lustre.existing:
        yield judge_quota(aws, LUSTRE_SYSTEMS, used=len(lustre))
        capacity_gib = cluster.storage.lustre.capacity_gib
        yield judge_quota(aws, LUSTRE_CAPACITY, used=sum(lustre), needed=capacity_gib, unit="GiB")
    home = cluster.storage.home
    if home is None or home.existing:
        return
    zfs = [system for system in others if system["FileSystemType"] == "OPENZFS"]
    yield judge_quota(aws, ZFS_SYSTEMS, used=len(zfs))
    used_gib = sum(system["StorageCapacity"] for system in zfs)
    yield judge_quota(aws, ZFS_CAPACITY, used=used_gib, needed=home.capacity_gib, unit="GiB")
    used_mbps = sum(system["OpenZFSConfiguration"]["ThroughputCapacity"] for system in zfs)
    yield judge_quota(aws, ZFS_THROUGHPUT, used=used_mbps, needed=home.throughput_mbps, unit="MB/s")


def _tag_of_the_stack(cluster: Cluster) -> dict[str, str]:
    """Return the tag of resources that belong to this cluster's storage stack."""
    return {"Key": "aws:cloudformation:stack-name", "Value": stack_names(cluster).storage}


def check_database_quotas(aws: ReadOnlyAws, cluster: SlurmCluster) -> Iterator[Finding]:
    """Check RDS's quotas if the database does not exist yet; it may be added to an existing cluster."""
    database = cluster.accounting_database
    databases = aws.items("rds", "describe_db_instances", "DBInstances") if database else []
    own = _tag_of_the_stack(cluster)
    if not database or any(own in found.get("TagList", []) for found in databases):
        return
    quotas = {
        quota["AccountQuotaName"]: quota
        for quota in aws.call("rds", "describe_account_attributes")["AccountQuotas"]
    }
    for name, shown in DATABASE_QUOTAS.items():
        quota = quotas.get(name)
        is_storage = name == "AllocatedStorage"
        yield judge_quota(
            aws,
            Quota("rds", RDS, shown),
            needed=database.storage_gib if is_storage else 1,
            used=quota["Used"] if quota else 0,
            unit="GiB" if is_storage else "",
            values={shown: quota["Max"]} if quota else {},
        )
