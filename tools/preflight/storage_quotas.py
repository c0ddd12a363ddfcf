"""FSx's quotas for the file systems that the storage stack makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from config.cluster import Cluster
from config.stack_names import stack_names
from tools.preflight.finding import Finding
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import Quota, judge_quota

SERVICE = "Amazon FSx"
LUSTRE_SYSTEMS = Quota("fsx", "L-FD6F2F22", SERVICE, "Lustre Persistent_2 file systems")
LUSTRE_CAPACITY = Quota("fsx", "L-8F1B9C74", SERVICE, "Lustre Persistent_2 storage capacity")
ZFS_SYSTEMS = Quota("fsx", "L-59D0763F", SERVICE, "OpenZFS file systems")
ZFS_CAPACITY = Quota("fsx", "L-88479C21", SERVICE, "OpenZFS SSD storage capacity")
ZFS_THROUGHPUT = Quota("fsx", "L-4EDE4065", SERVICE, "OpenZFS throughput capacity")


def check_storage_quotas(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    others = _other_file_systems(aws, cluster)
    lustre = [
        system["StorageCapacity"]
        for system in others
        if system.get("LustreConfiguration", {}).get("DeploymentType") == "PERSISTENT_2"
    ]
    yield judge_quota(aws, LUSTRE_SYSTEMS, used=len(lustre))
    capacity_gib = cluster.storage.lustre.capacity_gib
    yield judge_quota(aws, LUSTRE_CAPACITY, used=sum(lustre), needed=capacity_gib, unit="GiB")
    home = cluster.storage.home
    if home is None:
        return
    zfs = [system for system in others if system["FileSystemType"] == "OPENZFS"]
    yield judge_quota(aws, ZFS_SYSTEMS, used=len(zfs))
    used_gib = sum(system["StorageCapacity"] for system in zfs)
    yield judge_quota(aws, ZFS_CAPACITY, used=used_gib, needed=home.capacity_gib, unit="GiB")
    used_mbps = sum(system["OpenZFSConfiguration"]["ThroughputCapacity"] for system in zfs)
    yield judge_quota(aws, ZFS_THROUGHPUT, used=used_mbps, needed=home.throughput_mbps, unit="MB/s")


def _other_file_systems(aws: ReadOnlyAws, cluster: Cluster) -> list[dict[str, Any]]:
    """File systems that are not already this cluster's own."""
    own = {"Key": "aws:cloudformation:stack-name", "Value": stack_names(cluster).storage}
    systems = aws.items("fsx", "describe_file_systems", "FileSystems")
    return [system for system in systems if own not in system.get("Tags", [])]
