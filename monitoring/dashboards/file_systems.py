"""FSx, which publishes to CloudWatch alone; names and units of its user guides' lists of metrics.

https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html and, of OpenZFS,
https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/fsx-openzfs-metrics.html.
"""

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
            _rates(
                LUSTRE_MARK,
                DataReadOperations="reads",
                DataWriteOperations="writes",
                MetadataOperations="metadata",
            ),
            unit="ops",
            about="Many small reads, or metadata: data that is not in large files.",
        ),
    )


def _home() -> tuple[Panel, ...]:
    """Panels of the OpenZFS file system of home folders; without one they are empty."""
    use = {"NetworkThroughput": "network", "FileServerDiskThroughput": "disks", "CPU": "CPU"}
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
            tuple(
                FsxQuery(HOME_MARK, f"{part}Utilization", legend, "Average") for part, legend in use.items()
            ),
            unit="percent",
            maximum=100,
        ),
    )


def _throughput(mark: str) -> Panel:
    return Panel("Throughput", _rates(mark, DataReadBytes="read", DataWriteBytes="written"), unit="Bps")


def _rates(mark: str, **legends: str) -> tuple[FsxQuery, ...]:
    """Rates of metrics, which are given with their legends."""
    return tuple(FsxQuery(mark, metric, legend, per_second=True) for metric, legend in legends.items())
