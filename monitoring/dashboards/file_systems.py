"""FSx, which publishes to CloudWatch alone; names and units of its user guides' lists of metrics.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html and, of OpenZFS,
https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/fsx-openzfs-metrics.html.
"""

from __future__ import annotations

from monitoring.dashboards.model import CloudWatchQuery, Model, Panel, Query, Row, dashboard
from monitoring.dashboards.selection import Scheduler

LUSTRE_MARK, HOME_MARK = "@LUSTRE_ID@", "@HOME_ID@"
"""Where the ids of the two file systems come, which nobody knows before the deployment."""
_NAMESPACE = "AWS/FSx"


def file_systems(scheduler: Scheduler) -> Model:
    rows = [
        Row(
            "Lustre",
            (
                Panel(
                    "Free space",
                    _of(LUSTRE_MARK, "FreeDataStorageCapacity", "free", "Sum"),
                    unit="bytes",
                    about="Of all storage targets. A full file system ends every training at its next "
                    "checkpoint; it can grow while it is in use.",
                ),
                _throughput(LUSTRE_MARK),
                Panel(
                    "Operations",
                    (
                        _of(LUSTRE_MARK, "DataReadOperations", "reads", per_second=True),
                        _of(LUSTRE_MARK, "DataWriteOperations", "writes", per_second=True),
                        _of(LUSTRE_MARK, "MetadataOperations", "metadata", per_second=True),
                    ),
                    unit="ops",
                    about="Many small reads, or metadata: data that is not in large files.",
                ),
            ),
        )
    ]
    if scheduler == "slurm":
        rows[0] = Row(
            "Lustre",
            (
                *rows[0].panels,
                Panel(
                    "Full, as nodes see it",
                    Query(
                        'max by (mountpoint) (1 - node_filesystem_avail_bytes{fstype="lustre"} / '
                        'node_filesystem_size_bytes{fstype="lustre"})',
                        "{{mountpoint}}",
                    ),
                    unit="percentunit",
                    maximum=1,
                    warn_above=0.9,
                ),
            ),
        )
        rows.append(_home())
    return dashboard(
        uid="hyperpod-file-systems",
        title="FSx file systems",
        about="Space, throughput and operations of the shared file systems, from CloudWatch.",
        rows=rows,
    )


def _home() -> Row:
    """OpenZFS, for homes; without one, its panels are empty."""
    return Row(
        "Homes (OpenZFS, where the cluster has it)",
        (
            Panel(
                "Space",
                (
                    _of(HOME_MARK, "UsedStorageCapacity", "in use", "Average"),
                    _of(HOME_MARK, "StorageCapacity", "all", "Average"),
                ),
                unit="bytes",
            ),
            _throughput(HOME_MARK),
            Panel(
                "Use of what it has",
                (
                    _of(HOME_MARK, "NetworkThroughputUtilization", "network", "Average"),
                    _of(HOME_MARK, "FileServerDiskThroughputUtilization", "disks", "Average"),
                    _of(HOME_MARK, "CPUUtilization", "CPU", "Average"),
                ),
                unit="percent",
                maximum=100,
            ),
        ),
    )


def _throughput(mark: str) -> Panel:
    moved = {"DataReadBytes": "read", "DataWriteBytes": "written"}
    return Panel(
        "Throughput",
        tuple(_of(mark, metric, legend, per_second=True) for metric, legend in moved.items()),
        unit="Bps",
    )


def _of(
    mark: str, metric: str, legend: str, statistic: str = "Sum", *, per_second: bool = False
) -> CloudWatchQuery:
    return CloudWatchQuery(
        namespace=_NAMESPACE,
        metric=metric,
        dimensions=(("FileSystemId", mark),),
        statistic=statistic,  # type: ignore[arg-type]
        legend=legend,
        per_second=per_second,
    )
