"""NVIDIA GPUs, as DCGM sees them: names and units of dcgm-exporter's ``default-counters.csv``."""

from __future__ import annotations

from monitoring.dashboards.model import RATE, Model, Panel, Query, Row, dashboard
from monitoring.dashboards.selection import GPU_NODE, OF_GPU_NODE

_EACH = "{{Hostname}} GPU {{gpu}}"
_MIB = 2**20
_MILLIJOULES_PER_KWH = 3.6e9


def gpus() -> Model:
    return dashboard(
        uid="hyperpod-gpus",
        title="GPUs",
        about="What GPUs do, by DCGM: work, memory, power, links, faults.",
        variables=[GPU_NODE],
        rows=[
            Row(
                "Work",
                (
                    _average(
                        "A kernel runs",
                        "DCGM_FI_DEV_GPU_UTIL",
                        "Share of time in which any kernel ran, however small: 100 % is not yet full use.",
                        percent=True,
                    ),
                    _average(
                        "Tensor cores active",
                        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
                        "Share of cycles, closest to a training's MFU. A profiler takes the counter away.",
                    ),
                    _average(
                        "Memory interface active",
                        "DCGM_FI_PROF_DRAM_ACTIVE",
                        "Share of cycles in which device memory is read or written.",
                    ),
                ),
            ),
            Row(
                "Each GPU of the chosen nodes",
                (
                    _each("A kernel runs", "DCGM_FI_DEV_GPU_UTIL", unit="percent", maximum=100),
                    Panel(
                        "Memory in use",
                        Query(f"DCGM_FI_DEV_FB_USED{{{OF_GPU_NODE}}} * {_MIB}", _EACH),
                        unit="bytes",
                        about="torch keeps what it once took; trainings publish what they need.",
                    ),
                    _each("Power", "DCGM_FI_DEV_POWER_USAGE", unit="watt"),
                    _each("Temperature", "DCGM_FI_DEV_GPU_TEMP", unit="celsius"),
                    _each("Temperature of the memory", "DCGM_FI_DEV_MEMORY_TEMP", unit="celsius"),
                    Panel(
                        "Clock",
                        Query(f"DCGM_FI_DEV_SM_CLOCK{{{OF_GPU_NODE}}} * 1e6", _EACH),
                        unit="hertz",
                        about="One that is slower than its neighbours under load is throttled.",
                    ),
                ),
            ),
            Row(
                "Energy and faults",
                (
                    Panel(
                        "Energy in the time shown",
                        Query(
                            "sum by (Hostname) (increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
                            f"{{{OF_GPU_NODE}}}[$__range])) / {_MILLIJOULES_PER_KWH:.1e}",
                            "{{Hostname}}",
                        ),
                        kind="bargauge",
                        unit="kwatth",
                        decimals=2,
                    ),
                    Panel(
                        "PCIe replays",
                        Query(f"rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{OF_GPU_NODE}}}[{RATE}])", _EACH),
                        unit="cps",
                        about="Transfers that had to be sent again: a few are harmless, many a bad slot.",
                    ),
                    Panel(
                        "Rows of memory replaced",
                        (
                            Query(
                                f"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{{OF_GPU_NODE}}} > 0",
                                f"{_EACH}, after an error",
                            ),
                            Query(
                                f"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS{{{OF_GPU_NODE}}} > 0",
                                f"{_EACH}, in time",
                            ),
                            Query(
                                f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{OF_GPU_NODE}}} > 0",
                                f"{_EACH}: none left, replace the node",
                            ),
                        ),
                        decimals=0,
                    ),
                ),
            ),
        ],
    )


def _average(title: str, metric: str, about: str, *, percent: bool = False) -> Panel:
    of_100 = " / 100" if percent else ""
    chosen = f"{metric}{{{OF_GPU_NODE}}}{of_100}"
    return Panel(
        title,
        (
            Query(f"avg by (Hostname) ({chosen})", "{{Hostname}}"),
            Query(f"min({chosen})", "lowest GPU"),
        ),
        unit="percentunit",
        maximum=1,
        about=about,
    )


def _each(title: str, metric: str, *, unit: str, maximum: float | None = None) -> Panel:
    return Panel(title, Query(f"{metric}{{{OF_GPU_NODE}}}", _EACH), unit=unit, maximum=maximum)
