"""FSx, which publishes to CloudWatch alone; names and units of its user guides' lists of metrics.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html and, of OpenZFS,
https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/fsx-openzfs-metrics.html.
"""

from __future__ import annotations

from monitoring.dashboards.model import FsxQuery, Model, Panel, dashboard, share_panel
from monitoring.dashboards.selection import Scheduler

LUSTRE_MARK, HOME_MARK = "@LUSTRE_ID@", "@HOME_ID@"
"""Placeholders for the ids of the two file systems, which the deployment creates."""


def file_systems(scheduler: Scheduler) -> Model:
    rows = {"Lustre": _lustre()}
    if scheduler == "slurm":
        full = share_panel(
            "Full, as nodes see it",
            'max by (mountpoint) (1 - node_filesystem_avail_bytes{fstype="lustre"} / '
            'node_filesystem_size_bytes{fstype="lustre"})',
            "{{mountpoint}}",
            warn_above=0.9,
        )
        rows["Lustre"] += (full,)
        rows["Homes (OpenZFS, where the cluster has it)"] = _home()
    return dashboard(
        uid="hyperpod-file-systems",
        title="FSx file systems",
        about="Space, throughput and operations of the shared file systems, from CloudWatch.",
        rows=rows,
    )


def _lustre() -> tuple[Panel, ...]:
    return (
        Panel(
            "Free space",
            (FsxQuery(LUSTRE_MARK, "FreeDataStorageCapacity", "free"),),
            unit="bytes",
            about="Of all storage targets. A full file system ends every training at its next "
            "checkpoint; it can grow while it is in use.",
        ),
        _throughput(LUSTRE_MARK),
        Panel(
            "Operations",
            (
                FsxQuery(LUSTRE_MARK, "DataReadOperations", "reads", per_second=True),
                FsxQuery(LUSTRE_MARK, "DataWriteOperations", "writes", per_second=True),
                FsxQuery(LUSTRE_MARK, "MetadataOperations", "metadata", per_second=True),
            ),
            unit="ops",
            about="Many small reads, or metadata: data that is not in large files.",
        ),
    )


def _home() -> tuple[Panel, ...]:
    """Panels of OpenZFS, for homes; without one they are empty."""
    return (
        Panel(
            "Space",
            (
                FsxQuery(HOME_MARK, "UsedStorageCapacity", "in use", "Average"),
                FsxQuery(HOME_MARK, "StorageCapacity", "all", "Average"),
            ),
            unit="bytes",
        ),
        _throughput(HOME_MARK),
        Panel(
            "Use of what it has",
            (
                FsxQuery(HOME_MARK, "NetworkThroughputUtilization", "network", "Average"),
                FsxQuery(HOME_MARK, "FileServerDiskThroughputUtilization", "disks", "Average"),
                FsxQuery(HOME_MARK, "CPUUtilization", "CPU", "Average"),
            ),
            unit="percent",
            maximum=100,
        ),
    )


def _throughput(mark: str) -> Panel:
    return Panel(
        "Throughput",
        (
            FsxQuery(mark, "DataReadBytes", "read", per_second=True),
            FsxQuery(mark, "DataWriteBytes", "written", per_second=True),
        ),
        unit="Bps",
    )
