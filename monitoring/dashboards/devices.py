"""Dashboards of devices: NVIDIA GPUs and EFA network adapters.

Names and units of the GPUs' metrics are those of dcgm-exporter's ``default-counters.csv``. EFA's metrics are
counters of the driver, with the names of AWS's exporter.
"""

from functools import partial

from monitoring.dashboards.model import RATE, Model, Panel, Query, Variable, dashboard, share_panel
from monitoring.dashboards.selection import GPU_NODE, OF_GPU_NODE, average_and_lowest

_EACH = "{{Hostname}} GPU {{gpu}}"
_each = partial(Panel, legend=_EACH)
_BYTES_PER_MIB = 2**20
_HERTZ_PER_MHZ = "1e6"
_MILLIJOULES_PER_KWH = 3.6e9


def gpus() -> Model:
    """Return the dashboard of the GPUs."""
    return dashboard(
        uid="hyperpod-gpus",
        title="GPUs",
        about="Work, memory, power, links and faults of GPUs, as DCGM reports them.",
        variables=[GPU_NODE],
        rows={
            "Work": (
                share_panel(
                    "A kernel runs",
                    average_and_lowest(f"{_of_nodes('DCGM_FI_DEV_GPU_UTIL')} / 100"),
                    about="Share of time in which any kernel ran, however small; so 100 % is not necessarily "
                    "full use.",
                ),
                share_panel(
                    "Tensor cores active",
                    average_and_lowest(_of_nodes("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")),
                    about="Share of cycles, which is closest to a training's MFU. The counter is missing "
                    "while a profiler runs.",
                ),
                share_panel(
                    "Memory interface active",
                    average_and_lowest(_of_nodes("DCGM_FI_PROF_DRAM_ACTIVE")),
                    about="Share of cycles in which device memory is read or written.",
                ),
            ),
            "Each GPU of the chosen nodes": (
                _each(
                    "A kernel runs", _of_nodes("DCGM_FI_DEV_GPU_UTIL"), unit="percent", maximum=100
                ),
                _each(
                    "Memory in use",
                    f"{_of_nodes('DCGM_FI_DEV_FB_USED')} * {_BYTES_PER_MIB}",
                    unit="bytes",
                    about="Memory that torch has reserved. The training dashboard shows the memory that "
                    "trainings need.",
                ),
                _each("Power", _of_nodes("DCGM_FI_DEV_POWER_USAGE"), unit="watt"),
                _each("Temperature", _of_nodes("DCGM_FI_DEV_GPU_TEMP"), unit="celsius"),
                _each(
                    "Temperature of the memory",
                    _of_nodes("DCGM_FI_DEV_MEMORY_TEMP"),
                    unit="celsius",
                ),
                _each(
                    "Clock",
                    f"{_of_nodes('DCGM_FI_DEV_SM_CLOCK')} * {_HERTZ_PER_MHZ}",
                    unit="hertz",
                    about="A GPU that is slower than its neighbours under load is throttled.",
                ),
            ),
            "Energy and faults": (
                Panel(
                    "Energy in the time shown",
                    f"sum by (Hostname) (increase({_of_nodes('DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION')}"
                    f"[$__range])) / {_MILLIJOULES_PER_KWH:.1e}",
                    "{{Hostname}}",
                    kind="bargauge",
                    unit="kwatth",
                    decimals=2,
                ),
                _each(
                    "PCIe replays",
                    f"rate({_of_nodes('DCGM_FI_DEV_PCIE_REPLAY_COUNTER')}[{RATE}])",
                    unit="cps",
                    about="Transfers that were sent again. A few are harmless; many indicate a bad slot.",
                ),
                Panel(
                    "Rows of memory replaced",
                    (
                        _faults("UNCORRECTABLE_REMAPPED_ROWS", ", after an error"),
                        _faults("CORRECTABLE_REMAPPED_ROWS", ", before an error"),
                        _faults("ROW_REMAP_FAILURE", ": no spare rows left, replace the node"),
                    ),
                    decimals=0,
                ),
            ),
        },
    )


def _of_nodes(metric: str) -> str:
    """Return a metric of the chosen nodes."""
    return f"{metric}{{{OF_GPU_NODE}}}"


def _faults(field: str, meaning: str) -> Query:
    """Return the query for a counter of faults, with its meaning in the legend."""
    return Query(f"{_of_nodes(f'DCGM_FI_DEV_{field}')} > 0", f"{_EACH}{meaning}")


def efa() -> Model:
    """Return the dashboard of the EFA network."""
    return dashboard(
        uid="hyperpod-efa",
        title="EFA network",
        about="Traffic of NCCL, and of Lustre if it uses EFA; packets that were sent again or lost.",
        variables=[Variable("node", "Node", "node_amazonefa_info", "instance")],
        rows={
            "Traffic": (
                _rate("Sent", "tx_bytes", "Bps"),
                _rate("Received", "rx_bytes", "Bps"),
                _rate("Written to others' memory (RDMA)", "rdma_write_bytes", "Bps"),
                _rate("Read from others' memory (RDMA)", "rdma_read_bytes", "Bps"),
                _rate("Packets sent", "tx_pkts", "pps"),
                share_panel(
                    "Spread over the adapters of a node",
                    f"min by (instance) ({_chosen('tx_bytes')}) / "
                    f"(max by (instance) ({_chosen('tx_bytes')}) > 0)",
                    "{{instance}}",
                    about="Traffic of the least used adapter over that of the most used. NCCL uses all "
                    "equally, so the share is near 1 under load.",
                ),
            ),
            "Loss": (
                _rate("Sent again", "retrans_pkts", "pps", "Steady values mean congestion."),
                _rate("Dropped on arrival", "rx_drops", "pps", "The receiver does not keep up."),
                _rate(
                    "Others that did not answer",
                    "unresponsive_remote_events",
                    "cps",
                    "A node is lost, or a process on it has ended.",
                ),
                _rate("Time-outs", "retrans_timeout_events", "cps"),
                _rate("Impaired connections", "impaired_remote_conn_events", "cps"),
                _rate("Failed RDMA reads", "rdma_read_wr_err", "cps"),
            ),
        },
    )


def _chosen(counter: str) -> str:
    """Return the rate of a counter on the chosen nodes."""
    return f'rate(node_amazonefa_{counter}{{instance=~"$node"}}[{RATE}])'


def _rate(title: str, counter: str, unit: str, about: str = "") -> Panel:
    return Panel(
        title, f"sum by (instance) ({_chosen(counter)})", "{{instance}}", unit=unit, about=about
    )
