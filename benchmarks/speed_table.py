"""Medians, ratios and the table of the training benchmark's speed mode."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.arm_process import Window
from benchmarks.arm_setup import Setup
from benchmarks.our_arm import matmul_flops
from benchmarks.trainer_arms import GUIDANCE_TRANSFORMERS
from workloads.esm2.config import ModelConfig
from workloads.esm2.hardware import num_flops, peak_flops
from workloads.esm2.pretrained import on_meta, starting_config

MATMUL = "matmul"
"""The arm that measures what the core can do."""


def speed_summary(setup: Setup, windows: dict[str, list[Window]], rounds: int) -> dict[str, Any]:
    """Figures of every arm, and ratios of B to each other arm taken round by round."""
    model = on_meta(starting_config(ModelConfig(init_from=str(setup.model))))
    matmul = [window.steps * matmul_flops() / window.seconds for window in windows.get(MATMUL, [])]
    peak = peak_flops(setup.device) or (statistics.median(matmul) if matmul else None)
    arms: dict[str, Any] = {}
    for name, found in windows.items():
        if name == MATMUL:
            continue
        flops = [
            num_flops(model, window.residues, window.attended_pairs) / window.seconds for window in found
        ]
        arms[name] = {
            "residues_per_second": _spread(found, lambda window: window.residues_per_second),
            "slots_per_second": statistics.median(window.slots_per_second for window in found),
            "overall_residues_per_second": _total(found, "residues") / _total(found, "seconds"),
            "fill": _total(found, "residues") / _total(found, "slots"),
            "steps": _total(found, "steps"),
            "flops_per_second": statistics.median(flops),
            "share_of_peak": statistics.median(flops) / peak if peak else None,
            "loss": found[-1].loss,
        }
    speeds = {name: [window.residues_per_second for window in windows[name]] for name in arms}
    ratios = {
        f"B / {name}": _extent([b / other for b, other in zip(speeds["B"], speeds[name], strict=True)])
        for name in arms
        if name != "B" and "B" in arms
    }
    return {
        "seconds_are": "wall" if setup.device.type == "cuda" else "CPU seconds of one thread",
        "rounds": rounds,
        "arms": arms,
        "ratios": ratios,
        "matmul_flops_per_second": _extent(matmul) if matmul else None,
        "peak_flops_per_second": peak_flops(setup.device),
        "a_prime_batch": setup.batch_size,
        "tokens_per_pack": setup.tokens_per_pack,
    }


def speed_table(result: dict[str, Any]) -> str:
    speed, machine = result["speed"], result["environment"]
    share = "of matmul" if speed["matmul_flops_per_second"] else "MFU"
    lines = [
        f"{machine['device']}, torch {machine['torch']}, transformers {machine['transformers']} "
        f"(the guidance pins {GUIDANCE_TRANSFORMERS}); ESM-2 {result['model']} on {result['data']}",
        f"real residues per second ({speed['seconds_are']}), median of {speed['rounds']} windows; "
        f"A' batch {speed['a_prime_batch']}, B {speed['tokens_per_pack']} tokens a pack",
        "",
        f"{'':13}{'residues/s':>11} {'min - max':>17}{'slots/s':>11}{'fill':>7}{share:>11}{'train loss':>12}",
    ]
    for name, arm in speed["arms"].items():
        rate = arm["residues_per_second"]
        spread = f"{rate['min']:,.0f} - {rate['max']:,.0f}"
        part = f"{arm['share_of_peak']:.1%}" if arm["share_of_peak"] else "-"
        lines.append(
            f"{name:13}{rate['median']:>11,.0f} {spread:>17}{arm['slots_per_second']:>11,.0f}"
            f"{arm['fill']:>7.3f}{part:>11}{arm['loss']:>12.3f}"
        )
    lines.append("")
    for name, ratio in speed["ratios"].items():
        lines.append(f"{name:16}{ratio['median']:>6.2f}  ({ratio['min']:.2f} - {ratio['max']:.2f} by round)")
    if matmul := speed["matmul_flops_per_second"]:
        lines.append(
            f"plain bf16 matmul {matmul['median'] / 1e9:.0f} GFLOP/s "
            f"({matmul['min'] / 1e9:.0f} - {matmul['max'] / 1e9:.0f})"
        )
    return "\n".join(lines)


def _spread(windows: Sequence[Window], figure: Callable[[Window], float]) -> dict[str, float]:
    return _extent([figure(window) for window in windows])


def _extent(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _total(windows: Sequence[Window], name: str) -> float:
    return sum(getattr(window, name) for window in windows)
