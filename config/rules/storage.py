"""Rules of FSx and its clients."""

from collections.abc import Iterator
from math import ceil

from config.address_demand import gib_per_server
from config.cluster import Cluster
from config.facts.instance_catalogue import known
from config.reading.violation import Violation
from config.rules.rule import CommonRule

SMALLEST_GIB = 1200

_IOPS_STEP = 12000
_MAX_IOPS = 192000
_METADATA_IOPS = (1500, 3000, 6000, *range(_IOPS_STEP, _MAX_IOPS + 1, _IOPS_STEP))
"""Values of ``metadata_iops`` (FSx API reference, CreateFileSystemLustreMetadataConfiguration, SSD)."""

_SYSTEM_DIRECTORIES = frozenset(
    {
        "bin",
        "boot",
        "dev",
        "etc",
        "home",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "media",
        "mnt",
        "opt",
        "proc",
        "root",
        "run",
        "sbin",
        "snap",
        "srv",
        "sys",
        "tmp",
        "usr",
        "var",
    }
)
"""Top-level directories of Debian's and Ubuntu's root file system. A mount over or below one of them hides
part of the system, or is hidden by a mount of the system."""


def lustre_capacity_is_a_step(cluster: Cluster) -> Iterator[Violation]:
    """Check the steps (FSx API reference, CreateFileSystem, ``StorageCapacity``; user guide for EFA)."""
    lustre = cluster.storage.lustre
    if lustre is None:
        return
    capacity = lustre.capacity_gib
    step = gib_per_server(lustre)
    is_multiple = capacity >= step and capacity % step == 0
    is_smallest = capacity == SMALLEST_GIB and not lustre.efa
    if is_multiple or is_smallest:
        return
    next_multiple = max(1, ceil(capacity / step)) * step
    if lustre.efa:
        larger = next_multiple
        throughput = lustre.throughput_mbps_per_tib
        allowed = f"with EFA and {throughput} MB/s per TiB a multiple of {step} is allowed"
    else:
        larger = SMALLEST_GIB if capacity < SMALLEST_GIB else next_multiple
        allowed = f"PERSISTENT_2 SSD allows {SMALLEST_GIB}, {step} or a multiple of {step}"
    yield Violation("storage.lustre.capacity_gib", capacity, allowed, f"set {larger}")


def _next_iops(cluster: Cluster) -> int:
    """Return the smallest allowed value above the file's, or the largest."""
    lustre = cluster.storage.lustre
    given = (lustre.metadata_iops if lustre else None) or 0
    return next((step for step in _METADATA_IOPS if step > given), _MAX_IOPS)


def lustre_efa_has_a_client(cluster: Cluster) -> Iterator[Violation]:
    """Allow EFA only if nodes use it, because it enlarges the capacity steps and cannot be turned off."""
    if not (cluster.storage.lustre and cluster.storage.lustre.efa):
        return
    workers = [group for group in cluster.instance_groups if group.runs_jobs]
    names = list(dict.fromkeys(name for group in workers for name in group.types))
    found = known(names)
    if len(found) == len(names) and not any(instance.lustre_efa for instance in found):
        types = ", ".join(names) or "none"
        yield Violation(
            "storage.lustre.efa",
            True,
            f"Lustre is reached over EFA from types with EFA and Nitro v4 or later, except trn2;"
            f" the workers are {types}",
            "set false, or use such a type, for example ml.g6.8xlarge or ml.p5.48xlarge",
        )


def linked_directory_is_seen_from_inside(cluster: Cluster) -> Iterator[Violation]:
    if cluster.storage.lustre is None:
        return
    mount = cluster.storage.lustre.mount_path
    path = cluster.storage.data_bucket.lustre_path
    if path and (path == mount or path.startswith(f"{mount}/")):
        inside = path.removeprefix(mount) or "/data"
        yield Violation(
            "storage.data_bucket.lustre_path",
            path,
            f"the path begins at the file system's root, so nodes would see it at {mount}{path}",
            f"set {inside}",
        )


def _top(cluster: Cluster) -> str:
    """Return the top-level directory of the mount path; empty without Lustre."""
    lustre = cluster.storage.lustre
    return lustre.mount_path.split("/")[1] if lustre else ""


def _bucket_top(cluster: Cluster) -> str:
    path = cluster.storage.data_bucket.mount_path
    return path.split("/")[1] if path else ""


RULES = (
    # Pods have no homes, and training writes and renames files, which Mountpoint for Amazon S3 cannot.
    CommonRule(
        "storage.lustre",
        lambda cluster: cluster.storage.lustre is None and cluster.scheduler == "eks",
        "pods share files on Lustre only",
        "remove it, or set capacity_gib below it",
        got="none",
    ),
    # Code, images and runs need a file system that all nodes write.
    CommonRule(
        "storage.home",
        lambda cluster: (
            cluster.storage.lustre is None
            and cluster.storage.home is None
            and cluster.scheduler == "slurm"
        ),
        "with lustre: none, homes, code and images are on the OpenZFS file system of home",
        "add home, such as capacity_gib: 256, or a Lustre file system",
        got="no home",
    ),
    # SageMaker mounts FSx for Lustre in spaces, by CustomFileSystemConfigs of CreateUserProfile.
    CommonRule(
        "storage.lustre",
        lambda cluster: cluster.storage.lustre is None and cluster.studio,
        "Studio's spaces share the Lustre file system with the cluster",
        "add a Lustre file system, or remove studio",
        got="none",
    ),
    # The objects would appear twice, and the two would differ for a while after each change.
    CommonRule(
        "storage.data_bucket.mount_path",
        lambda cluster: cluster.storage.data_bucket.mount_path and cluster.storage.lustre,
        "Lustre shows the bucket at lustre_path already",
        "remove it, or set storage.lustre to none",
    ),
    # A mount hides what is below it, and /home is the other file system's.
    CommonRule(
        "storage.data_bucket.mount_path",
        lambda cluster: _bucket_top(cluster) in _SYSTEM_DIRECTORIES,
        lambda cluster: f"/{_bucket_top(cluster)} is a directory of the operating system",
        "set a separate directory, such as /data",
    ),
    lustre_capacity_is_a_step,
    # Values of CreateFileSystemLustreMetadataConfiguration (FSx API reference).
    CommonRule(
        "storage.lustre.metadata_iops",
        lambda cluster: (
            cluster.storage.lustre
            and cluster.storage.lustre.metadata_iops not in (None, *_METADATA_IOPS)
        ),
        f"1500, 3000, 6000 or a multiple of {_IOPS_STEP} up to {_MAX_IOPS} is allowed",
        lambda cluster: f"set {_next_iops(cluster)}, or null to let FSx choose",
    ),
    lustre_efa_has_a_client,
    # FSx cannot back up a file system that is linked to an S3 bucket (FSx API reference, CreateBackup).
    # The creation would fail only after the network is built.
    CommonRule(
        "storage.lustre.backup_days",
        lambda cluster: (
            cluster.storage.lustre
            and cluster.storage.lustre.backup_days
            and cluster.storage.data_bucket.lustre_path
        ),
        "FSx cannot back up a file system that is linked to a bucket; files below"
        " {cluster.storage.data_bucket.lustre_path} are exported instead",
        "set 0, or storage.data_bucket.lustre_path to null",
    ),
    # FSx accepts such a path, and the files would appear one directory too deep.
    linked_directory_is_seen_from_inside,
    # Also /home, which has the administrator's home directory.
    CommonRule(
        "storage.lustre.mount_path",
        lambda cluster: _top(cluster) in _SYSTEM_DIRECTORIES,
        lambda cluster: f"/{_top(cluster)} is a directory of the operating system",
        "set a separate directory, such as /fsx",
    ),
)
