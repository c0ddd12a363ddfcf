"""Figures of a training window: rates, both MFUs, and the share of the rate that a plain matrix product reaches."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from benchmarks.contestant import Window, clock, synchronize
from workloads.esm2.config import ModelConfig
from workloads.esm2.hardware import num_flops, peak_flops
from workloads.esm2.prediction_room import num_rows
from workloads.esm2.pretrained import on_meta, starting_config

CEILING_SHAPES = {"cuda": (8192, 8192, 8192), "cpu": (2048, 1280, 1280)}
"""Rows, inner size and columns of the product that stands for what a device can do. On a CPU: a pack of tokens
times the feed-forward matrix of 8M, which is also a projection of 650M."""
Precision = Literal["bf16", "fp32"]
DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}


def repeated(function: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Return the mean seconds of one call, over at least ``seconds`` after one call to warm up."""
    function()
    synchronize(device)
    started, calls, batch = clock(device), 0, 1
    while True:
        for _ in range(batch):
            function()
        synchronize(device)
        calls += batch
        if (spent := clock(device) - started) >= seconds:
            return spent / calls
        batch = min(2 * batch, 1024)


def product_rate(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, seconds: float
) -> float:
    """FLOP/s of the product of a (rows, inner) and an (inner, columns) matrix."""
    rows, inner, columns = shape
    left = torch.randn(rows, inner, device=device, dtype=dtype)
    right = torch.randn(inner, columns, device=device, dtype=dtype)
    out = torch.empty(rows, columns, device=device, dtype=dtype)
    return 2 * rows * inner * columns / repeated(lambda: torch.mm(left, right, out=out), device, seconds)


def precisions_of(device: torch.device) -> tuple[Precision, ...]:
    """Return the types worth trying. A CPU without bf16 instructions is many times slower in bf16."""
    if device.type == "cuda":
        return ("bf16",)
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return ("bf16", "fp32") if native else ("fp32",)


def product_rates(device: torch.device, seconds: float = 1.0) -> dict[Precision, float]:
    """FLOP/s of the ceiling's product in each type worth trying."""
    shape = CEILING_SHAPES[device.type]
    return {name: product_rate(shape, DTYPES[name], device, seconds) for name in precisions_of(device)}


def ceiling_of(device: torch.device, seconds: float = 1.0) -> float:
    """FLOP/s of a plain product in the type that is faster."""
    return max(product_rates(device, seconds).values())


def precision_of(device: torch.device) -> Precision:
    """Return the type in which plain products are faster."""
    rates = product_rates(device, seconds=0.2)
    return max(rates, key=lambda name: rates[name])


@dataclass(frozen=True)
class Arithmetic:
    """Counts the FLOPs of a window."""

    model: ModelConfig
    tokens_per_pack: int | None = None
    """Of our loop, whose last layer and head skip tokens that nothing is predicted for; None computes all."""
    recomputes: bool = False

    def flops(self, window: Window) -> tuple[float, float]:
        """Model FLOPs (``num_flops``), and those executed on real residues.

        Executed deducts what is skipped, and adds the forward pass, a third of the whole, where layers are
        recomputed.
        """
        model = on_meta(starting_config(self.model))
        counted = num_flops(model, window.residues, window.attended_pairs)
        executed = counted
        if self.tokens_per_pack is not None:
            last = f"esm.encoder.layer.{len(model.layers) - 1}."
            skipping = (
                f"{last}attention.output.",
                f"{last}LayerNorm.",
                f"{last}intermediate.",
                f"{last}output.",
            )
            parameters = sum(
                parameter.numel()
                for name, parameter in model.named_parameters()
                if name.startswith((*skipping, "lm_head."))
            )
            computed = num_rows(self.tokens_per_pack, self.model.mask_fraction) / self.tokens_per_pack
            executed -= 6 * parameters * window.residues * (1 - computed)
        return counted, executed * (4 / 3 if self.recomputes else 1)


def figures_of(
    windows: Sequence[Window], arithmetic: Arithmetic, device: torch.device, ceilings: Sequence[float]
) -> dict[str, Any]:
    """Return the figures of windows together.

    ``ceilings`` are FLOP/s of plain products measured around them. MFU is a share of the nominal peak, or of the
    measured ceiling on a device without one, such as a CPU.
    """
    total, ceiling = Window.total(windows), statistics.median(ceilings)
    rates = [window.residues_per_second for window in windows]
    counted, executed = (flops / total.seconds for flops in arithmetic.flops(total))
    peak = peak_flops(device)
    return {
        "residues_per_second": statistics.median(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "slots_per_second": total.slots / total.seconds,
        "fill": total.residues / total.slots,
        "mean_length": mean_length(total),
        "model_mfu": counted / (peak or ceiling),
        "executed_mfu": executed / (peak or ceiling),
        "mfu_is_share_of": "nominal peak" if peak else "measured ceiling",
        "share_of_ceiling": executed / ceiling,
        "ceiling_flops_per_second": ceiling,
        "peak_gb": total.peak_bytes / 1e9,
        "loss": total.loss,
        "steps": total.steps,
        "seconds": total.seconds,
        "seconds_are": "wall" if device.type == "cuda" else "CPU seconds of one thread",
    }


def mean_length(window: Window) -> float:
    """Length-weighted mean length of the proteins in residues: the length that the average residue sees."""
    squares = window.attended_pairs - 4 * (window.residues + window.proteins)  # (L + 2)**2 - 4 L - 4 = L**2
    return squares / window.residues
