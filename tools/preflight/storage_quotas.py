"""FSx's quotas for the file systems that the storage stack makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from config.cluster import Cluster
from config.stack_names import stack_names
from tools.preflight.finding import Finding
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import judge, quota_by_code

SERVICE = "Amazon FSx"
LUSTRE_SYSTEMS = ("L-FD6F2F22", "Lustre Persistent_2 file systems")
LUSTRE_CAPACITY = ("L-8F1B9C74", "Lustre Persistent_2 storage capacity")
ZFS_SYSTEMS = ("L-59D0763F", "OpenZFS file systems")
ZFS_CAPACITY = ("L-88479C21", "OpenZFS SSD storage capacity")
ZFS_THROUGHPUT = ("L-4EDE4065", "OpenZFS throughput capacity")


def check_storage_quotas(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    others = _other_file_systems(aws, cluster)
    lustre = [
        system["StorageCapacity"]
        for system in others
        if system.get("LustreConfiguration", {}).get("DeploymentType") == "PERSISTENT_2"
    ]
    yield _judge(aws, LUSTRE_SYSTEMS, 1, len(lustre), "")
    yield _judge(aws, LUSTRE_CAPACITY, cluster.storage.lustre.capacity_gib, sum(lustre), "GiB")
    home = cluster.storage.home
    if home is None:
        return
    zfs = [system for system in others if system["FileSystemType"] == "OPENZFS"]
    yield _judge(aws, ZFS_SYSTEMS, 1, len(zfs), "")
    yield _judge(aws, ZFS_CAPACITY, home.capacity_gib, sum(s["StorageCapacity"] for s in zfs), "GiB")
    used_mbps = sum(system["OpenZFSConfiguration"]["ThroughputCapacity"] for system in zfs)
    yield _judge(aws, ZFS_THROUGHPUT, home.throughput_mbps, used_mbps, "MB/s")


def _other_file_systems(aws: ReadOnlyAws, cluster: Cluster) -> list[dict[str, Any]]:
    """File systems that are not already this cluster's own."""
    own = {"Key": "aws:cloudformation:stack-name", "Value": stack_names(cluster).storage}
    systems = aws.items("fsx", "describe_file_systems", "FileSystems")
    return [system for system in systems if own not in system.get("Tags", [])]


def _judge(aws: ReadOnlyAws, quota: tuple[str, str], needed: float, used: float, unit: str) -> Finding:
    code, name = quota
    return judge(
        subject=f"quota {name}",
        quota_name=name,
        service=SERVICE,
        value=quota_by_code(aws, "fsx", code),
        needed=needed,
        used=used,
        unit=unit,
    )
