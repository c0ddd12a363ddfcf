"""Section ``storage`` of a cluster file: file systems and the data bucket.

Sizes are in GiB and throughput in MB/s, the units in which the services bill.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from config import text_forms as forms
from config.section import Section

MountPath = Annotated[str, forms.field(forms.MOUNT_PATH, max_length=64)]
Removal = Literal["retain", "destroy"]


EFA_CLIENT_URL = (
    "https://docs.aws.amazon.com/fsx/latest/LustreGuide/samples/configure-efa-fsx-lustre-client.zip"
)
"""FSx's program that sets up the EFA client (FSx for Lustre user guide, "Configuring EFA clients")."""
EFA_CLIENT_SHA256: str | None = None
"""Checksum of that file; nodes run nothing without it. docs/account-checks.md says how to find it."""
EFA_NOT_CONFIGURED = (
    "storage.lustre.efa is true, but the checksum of FSx's EFA client is not pinned yet: nodes mount Lustre"
    " over TCP, and the capacity steps of EFA are paid for nothing. docs/account-checks.md says how to pin it"
)


class ExistingLustre(Section):
    """File system that an earlier deployment kept, or that another team created."""

    file_system_id: Annotated[str, forms.field(forms.FILE_SYSTEM_ID)]
    """Id of the file system, in a subnet of the cluster's VPC."""
    mount_name: Annotated[str, forms.field(forms.MOUNT_NAME)]
    """Name under which it is mounted; CloudFormation cannot look it up."""


class LustreFileSystem(Section):
    """FSx for Lustre, PERSISTENT_2, SSD."""

    existing: ExistingLustre | None = None
    """File system to use instead of a new one. The other fields then describe it, and `make preflight`
    compares them. `make teardown` prints this section for a file system that it keeps."""
    capacity_gib: int = 1200
    """Capacity: 1200, 2400, or a multiple of 2400. It can grow, but never shrink."""
    throughput_mbps_per_tib: Literal[125, 250, 500, 1000] = 250
    """Throughput per TiB of capacity; with EFA it is fixed at creation."""
    compression: Literal["lz4", "none"] = "lz4"
    """Compression; lz4 stores more in the same capacity and does not reduce throughput."""
    metadata_iops: int | None = None
    """Metadata IOPS: 1500, 3000, 6000 or a multiple of 12000 up to 192000; null lets FSx choose."""
    efa: bool = False
    """The file system accepts EFA traffic; fixed at creation. Nodes with EFA adapters set up FSx's EFA client
    once its checksum is pinned, and use TCP until then. The capacity is a multiple of 38400, 19200, 9600 or
    4800 for 125, 250, 500 or 1000 MB/s per TiB."""
    backup_days: Annotated[int, Field(ge=0, le=90)] = 0
    """Days for which daily backups are kept; 0 disables backups. FSx cannot back up a file system that is
    linked to a bucket. Store files that must outlast the file system below ``data_bucket.lustre_path``, from
    which they are exported."""
    mount_path: MountPath = "/fsx"
    """Mount path on nodes and in pods: a separate directory outside those of the operating system."""
    removal: Removal = "retain"
    """Effect of `cdk destroy` of the storage stack on the file system."""

    @property
    def lacks_efa_client(self) -> bool:
        """Return whether nodes cannot use the EFA traffic that the file system accepts."""
        return self.efa and EFA_CLIENT_SHA256 is None


class HomeFileSystem(Section):
    """FSx for OpenZFS at /home, for small files and permissions, with which Lustre is slow."""

    existing: Annotated[str, forms.field(forms.FILE_SYSTEM_ID)] | None = None
    """Id of a file system to use instead of a new one. The other fields then describe it."""
    capacity_gib: Annotated[int, Field(ge=64, le=524288)] = 256
    """SSD capacity; it can grow."""
    throughput_mbps: Literal[160, 320, 640, 1280, 2560, 3840, 5120, 7680, 10240] = 160
    """Throughput of the whole file system."""
    backup_days: Annotated[int, Field(ge=0, le=90)] = 7
    """Days for which daily backups are kept; 0 disables backups."""
    removal: Removal = "retain"
    """Effect of `cdk destroy` of the storage stack on the file system."""


class DataBucket(Section):
    """S3 bucket with the data. Its objects appear below the Lustre mount, which exports new files."""

    existing: Annotated[str, forms.field(forms.BUCKET_NAME)] | None = None
    """Name of a bucket of this region to use instead of a new one. Its versions, keys and policy stay as they
    are. With an existing Lustre file system too, their link is expected to exist."""
    mount_path: MountPath | None = None
    """Path at which Slurm's nodes mount the bucket through Mountpoint for Amazon S3, without Lustre: files
    are read anywhere and written once from beginning to end. Null mounts nothing."""
    lustre_path: MountPath | None = "/data"
    """Directory of the Lustre file system that mirrors the bucket, at /fsx/data on nodes; null links none."""
    noncurrent_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """Days for which overwritten and deleted objects can be restored."""
    removal: Removal = "retain"
    """Effect of `cdk destroy` of the storage stack on the bucket and its objects."""


NO_LUSTRE = "none"
HOMES = "/home"
"""Mount path of the OpenZFS file system on nodes."""
SHARED_AT_HOMES = f"{HOMES}/shared"
"""Directory of code and images on OpenZFS, if there is no Lustre file system."""


def _without_lustre(value: Any) -> Any:
    """Return null for the word that people write; YAML's null means the same."""
    return None if value == NO_LUSTRE else value


def _schema_of_lustre(schema: dict[str, Any]) -> None:
    """Let editors offer the word, too."""
    schema["anyOf"].append({"const": NO_LUSTRE})


class Storage(Section):
    """File systems and buckets, which outlive the cluster."""

    lustre: Annotated[
        LustreFileSystem | None,
        BeforeValidator(_without_lustre),
        Field(json_schema_extra=_schema_of_lustre),
    ] = LustreFileSystem()
    """Shared file system of all nodes. ``none`` creates none, for Slurm with ``home``: code and images are in
    /home/shared then, and data in the bucket."""
    home: HomeFileSystem | None = None
    """FSx for OpenZFS at /home, only for Slurm, because pods have no homes. Null places the homes of
    ``access.users`` in the directory home of Lustre. The home of ubuntu is then on each node's root volume,
    and lost with the node."""
    data_bucket: DataBucket = DataBucket()
    """S3 bucket of the data."""
    kms: Annotated[str, forms.field(forms.KMS)] = "aws"
    """Key for all data at rest, including Kubernetes secrets: ``aws`` (service keys), ``create`` (a new key),
    or an ARN. All but aws require continuous provisioning."""

    @property
    def shared_path(self) -> str:
        """Path of the directory on nodes and in pods that has code and images, and outlives nodes."""
        return self.lustre.mount_path if self.lustre else SHARED_AT_HOMES
