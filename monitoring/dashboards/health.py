"""Overview of a cluster: its nodes and GPUs, and resources that run short."""

from functools import partial

from monitoring.alert_rules import IDLE_PERCENT
from monitoring.dashboards.model import RATE, Model, Panel, dashboard, share_panel
from monitoring.dashboards.selection import NODE, OF_NODE, Scheduler

_GPU = "Hostname, gpu"
"""Labels that identify a GPU. Its metrics also have its jobs as labels, so a GPU may have several series."""
_each = partial(Panel, legend="{{instance}}")
_LOCAL_DISKS = f'fstype=~"ext4|xfs", {OF_NODE}'


def health(scheduler: Scheduler) -> Model:
    """Return the overview of a cluster."""
    return dashboard(
        uid="hyperpod-health",
        title="Cluster health",
        about="Nodes and GPUs of the cluster, their load, and resources that run short.",
        variables=[NODE],
        rows={
            "Now": _now(scheduler),
            "Nodes": (
                share_panel(
                    "CPU",
                    f'1 - avg by (instance) (rate(node_cpu_seconds_total{{mode="idle", {OF_NODE}}}[{RATE}]))',
                    "{{instance}}",
                ),
                share_panel(
                    "Memory in use",
                    f"1 - node_memory_MemAvailable_bytes{{{OF_NODE}}}"
                    f" / node_memory_MemTotal_bytes{{{OF_NODE}}}",
                    "{{instance}}",
                    warn_above=0.95,
                ),
                share_panel(
                    "Disk in use",
                    "max by (instance, mountpoint) "
                    f"(1 - node_filesystem_avail_bytes{{{_LOCAL_DISKS}}}"
                    f" / node_filesystem_size_bytes{{{_LOCAL_DISKS}}})",
                    "{{instance}} {{mountpoint}}",
                    warn_above=0.95,
                    about="Share of each local file system. FSx has its own dashboard.",
                ),
                _each(
                    "Network, received",
                    _network("receive"),
                    unit="Bps",
                    about="Traffic through the kernel: TCP to FSx, S3 and other nodes. EFA bypasses it.",
                ),
                _each("Network, sent", _network("transmit"), unit="Bps"),
                _each(
                    "Waiting for disk or network file system",
                    f"rate(node_pressure_io_waiting_seconds_total{{{OF_NODE}}}[{RATE}])",
                    unit="percentunit",
                    about="Share of time in which at least one process waited for input or output.",
                ),
            ),
            "Faults": (
                _each(
                    "Processes killed when memory ran out",
                    f"increase(node_vmstat_oom_kill{{{OF_NODE}}}[{RATE}])",
                    decimals=0,
                ),
                _each(
                    "Clock ahead of or behind its source",
                    f"node_timex_offset_seconds{{{OF_NODE}}}",
                    unit="s",
                    minimum=None,
                    about="Requests to AWS are signed with the time. If the clock is wrong by some "
                    "minutes, all requests fail.",
                ),
                Panel(
                    "Last Xid error of each GPU",
                    f"max by ({_GPU}) (DCGM_FI_DEV_XID_ERRORS > 0)",
                    "{{Hostname}} GPU {{gpu}}",
                    decimals=0,
                    about="Errors 13, 31, 43 and 45 are mostly caused by the program, others by the "
                    "hardware. An error is shown until the node's dcgm-exporter is restarted.",
                ),
            ),
        },
    )


def _now(scheduler: Scheduler) -> tuple[Panel, ...]:
    """Return the panels of current numbers."""
    if scheduler == "eks":
        # The labels of EKS's collector do not show which scrapes are those of nodes.
        silent = _number("Scrapes that fail", "count(up == 0)")
    else:
        silent = _number("Exporters that do not", 'count(up{job=~"node|gpu"} == 0)', warn_above=1)
    return (
        _number("Nodes that answer", "count(count by (instance) (node_memory_MemTotal_bytes))"),
        silent,
        _number("GPUs", f"count(count by ({_GPU}) (DCGM_FI_DEV_GPU_TEMP))"),
        _number(
            "Idle GPUs",
            f"count(max by ({_GPU}) (avg_over_time(DCGM_FI_DEV_GPU_UTIL[15m])) < {IDLE_PERCENT})",
            about=f"GPUs with a utilization below {IDLE_PERCENT} % over 15 minutes.",
            warn_above=1,
        ),
        _number("Trainings", "count(esm2_training_step)"),
        _number("Residues/s of all trainings", f"sum(rate(esm2_training_residues_total[{RATE}]))"),
    )


def _number(
    title: str, expression: str, *, about: str = "", warn_above: float | None = None
) -> Panel:
    """Return a panel of one number, which is 0 if there is nothing to count."""
    counted = f"{expression} or vector(0)"
    return Panel(title, counted, title, kind="stat", about=about, decimals=0, warn_above=warn_above)


def _network(direction: str) -> str:
    """Return the network traffic of the chosen nodes; ``direction`` is receive or transmit."""
    return f"sum by (instance) (rate(node_network_{direction}_bytes_total{{{OF_NODE}}}[{RATE}]))"
