"""Storage of a deployed cluster: its bucket and its file systems."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import boto3

from config.cluster import Cluster
from config.resource_names import stack_names
from tools.aws_session import aws_client, if_present


@dataclass(frozen=True)
class FileSystem:
    file_system_id: str
    dns_name: str
    vpc_id: str
    mount_name: str
    """Name under which Lustre is mounted; empty for OpenZFS."""


@dataclass(frozen=True)
class Link:
    """Link of a folder of Lustre with a bucket."""

    path: str
    """Folder of the file system, such as ``/data``."""
    bucket: str


@dataclass(frozen=True)
class Storage:
    region: str
    bucket: str
    lustre: FileSystem | None
    home: FileSystem | None
    links: tuple[Link, ...]

    def linked_path(self) -> str | None:
        """Return the folder of Lustre that is linked with the cluster's bucket; None without one."""
        return next((link.path for link in self.links if link.bucket == self.bucket), None)


def read_storage(session: boto3.Session, cluster: Cluster) -> Storage:
    """Return the storage of a cluster, from the outputs of its stack.

    Raises:
        ValueError: if the stack, or a file system of it, does not exist.
    """
    name = stack_names(cluster).storage
    described = if_present(aws_client(session, "cloudformation").describe_stacks, StackName=name)
    if described is None:
        raise ValueError(
            f"there is no stack {name} in {cluster.region}. Deploy both clusters first. If the old one was "
            "torn down, name what it kept in the new file instead (docs/existing-resources.md)"
        )
    stack = described["Stacks"][0]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
    if "DataBucketName" not in outputs:
        raise ValueError(
            f"stack {name} is {stack['StackStatus']} and has no output DataBucketName; `make deploy` it first"
        )
    fsx = aws_client(session, "fsx")
    lustre = _file_system(fsx, outputs.get("LustreFileSystemId"))
    return Storage(
        region=cluster.region,
        bucket=outputs["DataBucketName"],
        lustre=lustre,
        home=_file_system(fsx, outputs.get("HomeFileSystemId")),
        links=_links(fsx, lustre.file_system_id) if lustre else (),
    )


def _file_system(fsx: Any, file_system_id: str | None) -> FileSystem | None:
    if file_system_id is None:
        return None
    response = if_present(fsx.describe_file_systems, FileSystemIds=[file_system_id])
    if response is None:
        raise ValueError(f"file system {file_system_id} of the stack does not exist")
    found: Mapping[str, Any] = response["FileSystems"][0]
    return FileSystem(
        file_system_id=file_system_id,
        dns_name=found["DNSName"],
        vpc_id=found["VpcId"],
        mount_name=found.get("LustreConfiguration", {}).get("MountName", ""),
    )


def _links(fsx: Any, file_system_id: str) -> tuple[Link, ...]:
    filters = [{"Name": "file-system-id", "Values": [file_system_id]}]
    # A file system has at most eight (FSx for Lustre user guide, "Quotas"), which is one page.
    associations = fsx.describe_data_repository_associations(Filters=filters)["Associations"]
    return tuple(
        Link(
            found["FileSystemPath"],
            found["DataRepositoryPath"].removeprefix("s3://").partition("/")[0],
        )
        for found in associations
        if found.get("FileSystemPath")
    )
