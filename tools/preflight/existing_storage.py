"""Checks of file systems and a bucket that the cluster file names instead of new ones."""

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

from config.cluster import Cluster, ExistingVpc
from config.resource_names import stack_names
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed

OPEN_PORTS = {
    "LUSTRE": "TCP 988 and 1018-1023, both ways",
    "OPENZFS": "TCP and UDP 111, 2049 and 20001-20003",
}
"""Ports between nodes and a file system (FSx user guides, "File system access control with Amazon VPC")."""


class _Compared(NamedTuple):
    """Values of one field."""

    in_file: object
    """Value in the cluster file."""
    actual: object
    """Value of the file system."""


def check_existing_storage(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    storage = cluster.storage
    lustre = storage.lustre
    home = storage.home
    bucket = storage.data_bucket
    if lustre and lustre.existing:
        subject = Subject(f"file system {lustre.existing.file_system_id}")
        found = yield from _find(aws, cluster, subject, lustre.existing.file_system_id, "LUSTRE")
        if found:
            actual = found["LustreConfiguration"]
            values = {
                "existing.mount_name": _Compared(lustre.existing.mount_name, actual["MountName"]),
                "capacity_gib": _Compared(lustre.capacity_gib, found["StorageCapacity"]),
                "throughput_mbps_per_tib": _Compared(
                    lustre.throughput_mbps_per_tib, actual.get("PerUnitStorageThroughput")
                ),
                "efa": _Compared(lustre.efa, actual.get("EfaEnabled", False)),
            }
            yield from _compare(subject, "storage.lustre", values)
            yield from _check_link(aws, cluster, subject, lustre.existing.file_system_id)
    if home and home.existing:
        subject = Subject(f"file system {home.existing}")
        found = yield from _find(aws, cluster, subject, home.existing, "OPENZFS")
        if found:
            actual = found["OpenZFSConfiguration"]
            values = {
                "capacity_gib": _Compared(home.capacity_gib, found["StorageCapacity"]),
                "throughput_mbps": _Compared(home.throughput_mbps, actual["ThroughputCapacity"]),
            }
            yield from _compare(subject, "storage.home", values)
    if bucket.existing:
        yield from _check_bucket(aws, bucket.existing)


def _find(
    aws: ReadOnlyAws, cluster: Cluster, subject: Subject, file_system_id: str, kind: str
) -> Generator[Finding, None, dict[str, Any] | None]:
    """Check that the file system is there and reachable; return its description, or None without one."""
    systems = aws.items("fsx", "describe_file_systems", "FileSystems")
    found = next((system for system in systems if system["FileSystemId"] == file_system_id), None)
    if found is None:
        yield subject.fail(
            f"does not exist in {cluster.region}", "set the id of a file system of this region"
        )
        return None
    if found["FileSystemType"] != kind:
        yield subject.fail(
            f"is of type {found['FileSystemType']}", f"set the id of a file system of type {kind}"
        )
        return None
    if found["Lifecycle"] != "AVAILABLE":
        yield subject.fail(f"is {found['Lifecycle']}", "wait until it is AVAILABLE")
    vpc = _vpc_of(aws, cluster)
    if vpc is None:
        yield subject.fail(
            f"is in {found['VpcId']}, and the network stack would create another VPC",
            f"set network.vpc: existing and network.vpc_id: {found['VpcId']}",
        )
    elif vpc != found["VpcId"]:
        yield subject.fail(
            f"is in {found['VpcId']}, the cluster in {vpc}", "set one of the cluster's VPC"
        )
    else:
        yield from _check_access(aws, cluster, subject, found, kind)
    return found


def _vpc_of(aws: ReadOnlyAws, cluster: Cluster) -> str | None:
    """Return the cluster's VPC; None if the network stack has yet to create it."""
    if isinstance(cluster.network, ExistingVpc):
        return cluster.network.vpc_id
    if not is_deployed(aws, cluster, "network"):
        return None
    tag = {"Name": "tag:aws:cloudformation:stack-name", "Values": [stack_names(cluster).network]}
    return next(
        (vpc["VpcId"] for vpc in aws.call("ec2", "describe_vpcs", Filters=[tag])["Vpcs"]), None
    )


def _check_access(
    aws: ReadOnlyAws, cluster: Cluster, subject: Subject, found: dict[str, Any], kind: str
) -> Iterator[Finding]:
    """Check that the file system has the security group of the network stack, which admits all nodes."""
    interfaces = aws.call(
        "ec2", "describe_network_interfaces", NetworkInterfaceIds=found["NetworkInterfaceIds"]
    )["NetworkInterfaces"]
    groups = {group["GroupName"] for interface in interfaces for group in interface["Groups"]}
    if any(group.startswith(stack_names(cluster).network) for group in groups):
        yield subject.ok("is in the cluster's VPC and security group")
    else:
        yield subject.warn(
            f"its security groups are {', '.join(sorted(groups)) or 'unknown'}",
            f"let the cluster's security group in: {OPEN_PORTS[kind]}",
        )


def _compare(subject: Subject, section: str, values: dict[str, _Compared]) -> Iterator[Finding]:
    """Compare each field of a section with the file system; ``values`` are by field."""
    for field, compared in values.items():
        if compared.in_file != compared.actual:
            yield subject.fail(
                f"{section}.{field} is {compared.in_file}, the file system has {compared.actual}",
                f"set it to {compared.actual}",
            )


def _check_link(
    aws: ReadOnlyAws, cluster: Cluster, subject: Subject, file_system_id: str
) -> Iterator[Finding]:
    """Check that the link to the bucket exists if both exist, and that a new one has its directory free."""
    bucket = cluster.storage.data_bucket
    only = [{"Name": "file-system-id", "Values": [file_system_id]}]
    # A file system has at most eight (FSx for Lustre user guide, "Quotas"), which is one page.
    links = aws.call("fsx", "describe_data_repository_associations", Filters=only)["Associations"]
    linked = {link["FileSystemPath"]: link["DataRepositoryPath"].rstrip("/") for link in links}
    path = bucket.lustre_path
    if path is None:
        return
    if bucket.existing and linked.get(path) != f"s3://{bucket.existing}":
        yield subject.fail(
            f"{path} is linked to {linked.get(path, 'no bucket')}, not to s3://{bucket.existing}",
            f"`aws fsx create-data-repository-association --file-system-id {file_system_id} "
            f"--file-system-path {path} --data-repository-path s3://{bucket.existing}`",
        )
    if not bucket.existing and path in linked:
        name = linked[path].removeprefix("s3://")
        yield subject.fail(
            f"{path} is already linked to {linked[path]}",
            f"set storage.data_bucket.existing: {name}, or another storage.data_bucket.lustre_path",
        )


def _check_bucket(aws: ReadOnlyAws, name: str) -> Iterator[Finding]:
    subject = Subject(f"bucket {name}")
    found = aws.find("s3", "head_bucket", Bucket=name)
    if found is None:
        yield subject.fail(
            "does not exist", "set storage.data_bucket.existing to the name of a bucket"
        )
    elif (region := found.get("BucketRegion", aws.region)) != aws.region:
        yield subject.fail(
            f"is in {region}, the cluster in {aws.region}", "set a bucket of this region"
        )
    elif aws.call("s3", "get_bucket_versioning", Bucket=name).get("Status") != "Enabled":
        yield subject.warn(
            "keeps no versions: deleted and overwritten objects are lost", "enable versioning"
        )
    else:
        yield subject.ok("is in this region and keeps versions")
