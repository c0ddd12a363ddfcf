"""The storage of a cluster file: file systems and the data bucket.

Sizes are in GiB, throughput in MB/s, as the services bill them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config import text_forms as forms
from config.section import Section

MountPath = Annotated[str, forms.field(forms.MOUNT_PATH, max_length=64)]
Removal = Literal["retain", "destroy"]


EFA_NOT_CONFIGURED = (
    "storage.lustre.efa is true, but nodes are not configured for EFA to Lustre yet: they mount it over TCP,"
    " and the capacity steps of EFA are paid for nothing"
)


class LustreFileSystem(Section):
    """FSx for Lustre, PERSISTENT_2, SSD."""

    capacity_gib: int = 1200
    """1200, 2400, or a multiple of 2400; it can grow, never shrink."""
    throughput_mbps_per_tib: Literal[125, 250, 500, 1000] = 250
    """MB/s for each TiB of capacity; with EFA fixed at creation."""
    compression: Literal["lz4", "none"] = "lz4"
    """lz4 stores more in the same capacity, and costs no throughput."""
    metadata_iops: int | None = None
    """1500, 3000, 6000 or a multiple of 12000 up to 192000; null lets FSx set it from the capacity."""
    efa: bool = False
    """The file system accepts EFA traffic; fixed at creation. Nodes are not configured for it yet, and use
    TCP. The capacity is a multiple of 38400, 19200, 9600 or 4800, for 125, 250, 500 or 1000 MB/s per TiB."""
    backup_days: Annotated[int, Field(ge=0, le=90)] = 0
    """How long daily backups are kept; 0 makes none. FSx makes none of a file system linked to a bucket: what
    must outlast the file system belongs below ``data_bucket.lustre_path``, from where it is exported."""
    mount_path: MountPath = "/fsx"
    """Where nodes and pods see it: a directory of its own, outside those of the operating system."""
    removal: Removal = "retain"
    """What `cdk destroy` of the storage stack does to it."""


class HomeFileSystem(Section):
    """FSx for OpenZFS at /home: small files and permissions, where Lustre is slow."""

    capacity_gib: Annotated[int, Field(ge=64, le=524288)] = 256
    """SSD; it can grow."""
    throughput_mbps: Literal[160, 320, 640, 1280, 2560, 3840, 5120, 7680, 10240] = 160
    """MB/s of the whole file system."""
    backup_days: Annotated[int, Field(ge=0, le=90)] = 7
    """How long daily backups are kept; 0 makes none."""
    removal: Removal = "retain"
    """What `cdk destroy` of the storage stack does to it."""


class DataBucket(Section):
    """S3 bucket with the data; its objects appear below the Lustre mount, new files are exported to it."""

    lustre_path: MountPath | None = "/data"
    """Directory of the Lustre file system that mirrors the bucket, seen at /fsx/data; null links nothing."""
    noncurrent_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """How long overwritten and deleted objects can be brought back."""
    removal: Removal = "retain"
    """What `cdk destroy` of the storage stack does to it and its objects."""


class Storage(Section):
    """What outlives the cluster: file systems and buckets."""

    lustre: LustreFileSystem = LustreFileSystem()
    """The shared file system of all nodes."""
    home: HomeFileSystem | None = None
    """FSx for OpenZFS at /home, for Slurm alone: pods have no homes. Null puts those of ``access.users`` into
    the directory home of Lustre; ubuntu's is then on each node's root volume, and lost with the node."""
    data_bucket: DataBucket = DataBucket()
    """The S3 bucket of the data."""
    kms: Annotated[str, forms.field(forms.KMS)] = "aws"
    """Key of everything at rest, Kubernetes's secrets too: ``aws`` (service keys), ``create`` (a key of its
    own), or an ARN. All but aws need continuous provisioning."""
