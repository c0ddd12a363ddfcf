"""Dashboard of the FSx file systems, which publish their metrics only to CloudWatch.

Names and units of the metrics are those of the user guides of Lustre
(https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html) and OpenZFS
(https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/fsx-openzfs-metrics.html).
"""

from monitoring.dashboards.model import FsxQuery, Model, Panel, dashboard, share_panel
from monitoring.dashboards.selection import Scheduler

LUSTRE_MARK = "@LUSTRE_ID@"
"""Placeholder for the id of the Lustre file system, which the deployment creates."""
HOME_MARK = "@HOME_ID@"
"""Placeholder for the id of the file system of home directories."""


def file_systems(scheduler: Scheduler) -> Model:
    """Return the dashboard of the file systems."""
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
        rows["Home directories (OpenZFS, if the cluster has it)"] = _home()
    return dashboard(
        uid="hyperpod-file-systems",
        title="FSx file systems",
        about="Space, throughput and operations of the shared file systems, from CloudWatch.",
        rows=rows,
    )


def _lustre() -> tuple[Panel, ...]:
    """Return the panels of the Lustre file system."""
    return (
        Panel(
            "Free space",
            (FsxQuery(LUSTRE_MARK, "FreeDataStorageCapacity", "free"),),
            unit="bytes",
            about="Free space of all storage targets. A full file system ends every training at its next "
            "checkpoint. The file system can be enlarged while it is in use.",
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
            about="Many small reads or metadata operations mean that the data are not in large files.",
        ),
    )


def _home() -> tuple[Panel, ...]:
    """Return the panels of the file system of home directories, which are empty if there is none."""
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
                FsxQuery(HOME_MARK, f"{part}Utilization", legend, "Average")
                for part, legend in use.items()
            ),
            unit="percent",
            maximum=100,
        ),
    )


def _throughput(mark: str) -> Panel:
    """Return the panel of a file system's throughput."""
    return Panel(
        "Throughput", _rates(mark, DataReadBytes="read", DataWriteBytes="written"), unit="Bps"
    )


def _rates(mark: str, **legends: str) -> tuple[FsxQuery, ...]:
    """Return queries for the rates of metrics; the arguments are their legends by metric."""
    return tuple(
        FsxQuery(mark, metric, legend, per_second=True) for metric, legend in legends.items()
    )
