"""Known shares of a device's peak (model FLOPs utilization, MFU), from which the speed of a run follows.

The first that is known for a device and a size of model counts:

1. The share that this trainer reached on the same GPU, from the lines of acceptance runs.
2. A published share, for sizes that no acceptance run has measured.
3. A share scaled from the most similar GPU that was measured. A kernel that is bound by products runs at the
   same share of the peak on both GPUs, and a kernel that is bound by memory at the same share of the memory's
   bandwidth. A step has both, so the shares of these two cases are the ends of a range. Sizes between two
   measured ones are assumed to lie between their shares.
4. An assumption, for devices other than GPUs.

All measurements are of one GPU. Communication among several is not part of them.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.proteins.model.shape import ModelShape
from seqlm.training.peak_rates import PEAK_BF16_FLOPS
from tools.plan.memory import Layout

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
BANDWIDTHS = {
    "A10G": 600e9,
    "A100": 1555e9,
    "L4": 300e9,
    "L40S": 864e9,
    "H100": 3350e9,
    "H200": 4800e9,
    "B200": 8000e9,
}
"""Bandwidths of memory in bytes/s, from NVIDIA's data sheets: SXM boards, and the A100 with 40 GB."""


class Share(NamedTuple):
    """Share of a device's peak."""

    low: float
    high: float
    source: str
    """Origin of both ends, for people."""


class Measurement(NamedTuple):
    """Share of a GPU's peak that this trainer reached with one size of model."""

    gpu: str
    """GPU, by its name in ``PEAK_BF16_FLOPS``."""
    size: str
    """Published size of the model."""
    share: float
    """Model FLOPs over the nominal peak, in steps of the recipe."""
    ceiling: float
    """Share of the peak that a large plain product reached in the same run."""
    tokens_per_pack: int
    commit: str
    kernels: str
    """Kernels of ``train.kernels`` that computed, or ``none``."""


PUBLISHED: dict[tuple[str, str], Share] = {
    ("A100", "15B"): Share(
        0.33,
        0.56,
        "published: BioNeMo 2's documentation, chart of pre-training throughput: PyTorch 1,150 and BioNeMo "
        "1,930 tokens/s",
    ),
    ("H100", "15B"): Share(
        0.23,
        0.39,
        "published: BioNeMo 2's documentation, chart of pre-training throughput: PyTorch 2,430 and BioNeMo "
        "4,150 tokens/s",
    ),
    ("H200", "15B"): Share(
        0.15,
        0.55,
        "published: bionemo-recipes esm2_native_te: FSDP2 with FlashAttention 1,630, with packing 5,950"
        " tokens/s",
    ),
}
"""Published shares by GPU and size, from plain PyTorch to Megatron or Transformer Engine."""
ASSUMED = Share(
    0.20,
    0.40,
    "assumed, because no rate is published for this device: plain PyTorch to BioNeMo on H100",
)
"""Assumption for a device that is not a GPU."""
ASSUMED_SMALL = Share(
    0.04,
    0.20,
    "assumed, because no rate is published: small models wait for launches and data",
)
"""Assumption for a small model on a device that is not a GPU."""
NO_KERNELS = "none"
"""Kernels of lines that name none, because no kernel existed at their commit."""
SMALL = ("8M", "35M")
"""Sizes of small models."""


def measurements(results: Path = RESULTS) -> tuple[Measurement, ...]:
    """Return the best measurement of each GPU and size in the committed lines of acceptance runs.

    Lines with recomputed layers or another optimizer than AdamW are left out.
    """
    best: dict[tuple[str, str], Measurement] = {}
    for file in sorted(results.glob("*.jsonl")):
        for text in file.read_text().splitlines():
            line = json.loads(text)
            gpu = next((name for name in PEAK_BF16_FLOPS if name in line["device"].split()), None)
            if gpu is None or not _is_plain(line):
                continue
            recipe = line["figures"]["recipe"]
            found = Measurement(
                gpu,
                line["size"],
                share=recipe["model_mfu"],
                ceiling=recipe["ceiling_flops_per_second"] / PEAK_BF16_FLOPS[gpu],
                tokens_per_pack=int(_settings(line)["tokens_per_pack"]),
                commit=line["commit"],
                kernels=line["figures"].get("kernels", NO_KERNELS),
            )
            before = best.get((gpu, found.size))
            if before is None or found.share > before.share:
                best[gpu, found.size] = found
    return tuple(best.values())


def _is_plain(line: Mapping[str, Any]) -> bool:
    """Return whether a line is a complete measurement of the trainer with its defaults."""
    settings = _settings(line)
    return (
        line["stage"] == "speed"
        and line["verdict"] in ("passed", "missed", "measured")
        and not line["rehearsal"]
        and settings.get("recompute", "0") == "0"
        and settings.get("optimizer", "adamw") == "adamw"
    )


def _settings(line: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a line's shape by name."""
    parts = line["shape"].split(",")
    return dict(part.split("=", 1) for part in parts if "=" in part)


def known_share(layout: Layout, gpu: str) -> Share:
    """Return the measured, published, scaled or assumed share of a device's peak."""
    shape = layout.shape
    family = MODEL_FAMILIES[layout.config.model.family]
    size = next((name for name in family.sizes if family.published_shape(name) == shape), None)
    measured = measurements()
    for one in measured:
        if (one.gpu, one.size) == (gpu, size):
            source = f"measured with this trainer on one {gpu} ({_origin([one])})"
            return Share(one.share, one.share, source + _about_packs(layout, [one]))
    if size is not None and (gpu, size) in PUBLISHED:
        return PUBLISHED[gpu, size]
    if gpu not in BANDWIDTHS:
        return ASSUMED_SMALL if size in SMALL else ASSUMED
    reference = min({one.gpu for one in measured}, key=lambda name: abs(math.log(_gain(name, gpu))))
    found = neighbors(shape, size, reference, measured)
    share = _scaled(found, gpu)
    return share._replace(source=share.source + _about_packs(layout, found))


def _about_packs(layout: Layout, found: Iterable[Measurement]) -> str:
    """Return what to add to a source if the packs of a run are smaller than the measured ones."""
    measured = min(one.tokens_per_pack for one in found)
    if layout.config.train.tokens_per_pack >= measured:
        return ""
    return f"; packs of {measured:,} tokens were measured, and smaller ones are slower"


def neighbors(
    shape: ModelShape, size: str | None, gpu: str, measured: Iterable[Measurement]
) -> list[Measurement]:
    """Return the measurement on a GPU of a size, or of the next smaller and the next larger model."""
    here = [one for one in measured if one.gpu == gpu]
    if same := [one for one in here if one.size == size]:
        return same
    matrices = shape.layers * shape.layer_matrices
    ordered = sorted(here, key=_matrices)
    smaller = [one for one in ordered if _matrices(one) <= matrices]
    larger = [one for one in ordered if _matrices(one) > matrices]
    return [*smaller[-1:], *larger[:1]]


def _matrices(measurement: Measurement) -> int:
    """Return the number of weights in the matrices of a measured model's layers."""
    family = next(one for one in MODEL_FAMILIES.values() if measurement.size in one.sizes)
    shape = family.published_shape(measurement.size)
    return shape.layers * shape.layer_matrices


def _gain(measured_gpu: str, gpu: str) -> float:
    """Return the factor of the share of kernels that memory bounds, from one GPU to another."""
    bandwidths = BANDWIDTHS[gpu] / BANDWIDTHS[measured_gpu]
    peaks = PEAK_BF16_FLOPS[gpu] / PEAK_BF16_FLOPS[measured_gpu]
    return bandwidths / peaks


def _scaled(found: Sequence[Measurement], gpu: str) -> Share:
    """Return the range of shares on a GPU that follows from measurements on another or the same one."""
    reference = found[0].gpu
    gain = _gain(reference, gpu)
    ends = [share for one in found for share in (one.share, one.share * gain)]
    highest = max(one.ceiling for one in found)
    sizes = " and ".join(one.size for one in found)
    origin = f"from {sizes}, measured with this trainer on one {reference} ({_origin(found)})"
    if reference == gpu:
        source = f"assumed {origin}, because this size was not measured"
    else:
        source = f"scaled {origin} by the ratios of peak and memory bandwidth"
    return Share(min(ends), min(max(ends), highest), source)


def _origin(found: Sequence[Measurement]) -> str:
    commits = ", ".join(dict.fromkeys(one.commit[:7] for one in found))
    kernels = " or ".join(dict.fromkeys(one.kernels for one in found))
    return f"benchmarks/results, commit {commits}, kernels of train.kernels: {kernels}"
