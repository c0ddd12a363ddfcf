"""Figures of training windows: rates, both MFUs, and the share of what a plain matrix product reaches."""

import statistics
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch

from benchmarks.contestant import Window
from seqlm.proteins.model.pretrained import on_meta, starting_config
from seqlm.proteins.model.shape import num_rows
from seqlm.runs.run_file import ModelConfig
from seqlm.training.hardware import executed_flops, matmul_ceiling, num_flops, peak_flops
from seqlm.training.packing import SPECIAL_TOKENS
from seqlm.training.precision import has_bf16_instructions
from seqlm.training.tracking.progress import Progress

Precision = Literal["bf16", "fp32"]
DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Ceiling(NamedTuple):
    """Measured speed of a plain matrix product, in the type in which it is faster."""

    flops_per_second: float
    precision: Precision


def precisions_of(device: torch.device) -> tuple[Precision, ...]:
    """Return the types worth trying."""
    if device.type == "cuda":
        return ("bf16",)
    return ("bf16", "fp32") if has_bf16_instructions() else ("fp32",)


def ceiling_of(device: torch.device) -> Ceiling:
    """Measure plain products in each type worth trying, and return the fastest."""
    return max(
        Ceiling(matmul_ceiling(device, DTYPES[name]), name) for name in precisions_of(device)
    )


def figures_of(
    windows: Sequence[Window],
    model: ModelConfig,
    device: torch.device,
    ceilings: Sequence[float],
    *,
    tokens_per_pack: int | None = None,
    recomputed: bool = False,
) -> dict[str, Any]:
    """Return the figures of windows together.

    MFU is a share of the nominal peak, or of the measured ceiling on a device without one, such as a CPU.

    Args:
        windows: windows, at least one.
        model: trained model.
        device: device of the training.
        ceilings: FLOP/s of plain products measured around the windows.
        tokens_per_pack: tokens of a pack of our loop, which computes the last layer only on predicted tokens;
            None for a loop that computes it on all tokens.
        recomputed: whether layers compute their forward pass twice.
    """
    total = Window.total(windows)
    ceiling = statistics.median(ceilings)
    esm = on_meta(starting_config(model))
    rows = None
    if tokens_per_pack is not None:
        num_packs = total.slots // tokens_per_pack
        rows = num_packs * num_rows(tokens_per_pack, model.mask_fraction)
    pairs = total.attended_pairs
    counted = num_flops(esm, total.residues, pairs) / total.seconds
    num_executed = executed_flops(
        esm, total.slots, rows, pairs, recomputed=recomputed, on_cpu=device.type == "cpu"
    )
    executed = num_executed / total.seconds
    peak = peak_flops(device)
    rates = [window.residues_per_second for window in windows]
    done = Progress(proteins=total.proteins, residues=total.residues, attended_pairs=pairs)
    return {
        "residues_per_second": statistics.median(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "fill": total.residues / total.slots,
        "mean_length": done.length_weighted_mean(SPECIAL_TOKENS),
        "model_mfu": counted / (peak or ceiling),
        "executed_mfu": executed / (peak or ceiling),
        "mfu_is_share_of": "nominal peak" if peak else "measured ceiling",
        "share_of_ceiling": executed / ceiling,
        "ceiling_flops_per_second": ceiling,
        "peak_gb": total.peak_bytes / 1e9,
        "loss": total.loss,
        "steps": total.steps,
        "seconds": total.seconds,
        "seconds_are": seconds_are(device),
    }


def extent(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def seconds_are(device: torch.device) -> str:
    return "wall" if device.type == "cuda" else "CPU seconds of one thread"


def shown(figures: dict[str, Any]) -> dict[str, str]:
    """Return the cells that accompany every rate in a table, by heading."""
    cells = {
        "MFU, model": f"{figures['model_mfu']:.1%}",
        "MFU, executed": f"{figures['executed_mfu']:.1%}",
        "of the measured ceiling": f"{figures['share_of_ceiling']:.0%}",
        "fill": f"{figures['fill']:.2f}",
        "mean length": f"{figures['mean_length']:.0f}",
    }
    if figures["seconds_are"] == "wall":
        cells["peak GB"] = f"{figures['peak_gb']:.1f}"
    return cells
