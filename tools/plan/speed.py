"""Residues a second, and how long a run takes.

FLOPs are 6 per parameter and token and 12 L C per pair of attended positions, as this repository counts them.
None of the published shares of a GPU's peak (MFU) is a measurement of this code: a run's own results go
before them (``--measured``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tools.plan.memory import Layout, window_keys
from tools.plan.model_size import ModelShape
from workloads.esm2.shapes import SHAPES
from workloads.run_file import RunFile
from workloads.training.peak_rates import NEURON_CORE_BF16_FLOPS, PEAK_BF16_FLOPS

NEMO = "published: BioNeMo 2's documentation, chart of pre-training throughput"
MEAN_LENGTH = 414.0
"""Positions that a residue attends to, on average over residues: the sum of squared lengths over that of
lengths, for lengths like UniRef50's (log-normal, median 200, sigma 0.75) cropped to 1,022 residues."""
FILL = 0.99
"""Residues of a pack's places; the rest is CLS, EOS and padding. As measured (README)."""
PEAKS = PEAK_BF16_FLOPS | NEURON_CORE_BF16_FLOPS
"""FLOP/s of what a process has: a GPU, or a logical NeuronCore by the name of its accelerator."""

RECOMPUTED = 0.75
"""Of a rate without, if layers are computed again in the backward pass: 8 FLOPs per parameter and token in
place of 6, of which a share of the peak counts 6. Nobody says of a published rate which it is."""


@dataclass(frozen=True)
class Speed:
    mfu_low: float
    mfu_high: float
    source: str
    residues_per_second_low: float
    """Of all GPUs together."""
    residues_per_second_high: float
    busy: float
    """Share of GPUs with a pack in an average round of a step."""


def read_measured(path: Path) -> tuple[str, float]:
    """The accelerator of a finished run and its MFU, from ``results.json``.

    Raises:
        ValueError: if it is not one, or the run was on a device whose peak is not known, as a CPU.
    """
    try:
        results = json.loads(path.read_text())
        mfu, device = results["mfu"], results["environment"]["device"]
    except (OSError, json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(
            f"--measured: got {path}; a run's results are wanted, as runs/<name>/results.json"
        ) from None
    gpu = next((name for name in sorted(PEAKS, key=len, reverse=True) if name in device), None)
    if not mfu or gpu is None:
        raise ValueError(
            f"--measured: {path} is of a run on {device}, for which no MFU is known; give one of a GPU:"
            f" {', '.join(PEAKS)}"
        )
    return gpu, mfu


def flops_per_residue(layout: Layout) -> float:
    """As the trainer counts them: 4 for a frozen parameter, whose gradient falls away."""
    config, shape, parameters = layout.config, layout.shape, layout.parameters
    counted_out = shape.embedding + shape.contact_head
    frozen = parameters.frozen + parameters.frozen_matrices
    if config.task is None or config.lora is None:
        weights = 6 * (parameters.total - counted_out)
    else:
        weights = 6 * parameters.trained + 4 * max(0, frozen - counted_out)
    longest = config.model.max_residues + 2
    return weights + 12 * shape.layers * shape.hidden * min(MEAN_LENGTH, longest)


def speed(
    layout: Layout, *, gpu: str, mfu: float | None = None, measured: tuple[str, float] | None = None
) -> Speed:
    """With a share of the peak that is given, else measured (``read_measured``), else published.

    Raises:
        ValueError: if the GPU's peak is not known, or what was measured was on another GPU.
    """
    if gpu not in PEAKS:
        raise ValueError(
            f"{gpu}: its bf16 peak is not in workloads/training/peak_rates.py; listed are {', '.join(PEAKS)}"
        )
    if measured and measured[0] != gpu:
        raise ValueError(f"--measured: the run was on {measured[0]}, and the cluster has {gpu}; give --mfu")
    config, shape, world_size = layout.config, layout.shape, layout.world_size
    counted = flops_per_residue(layout)
    size = next((name for name, known in SHAPES.items() if ModelShape(*known) == shape), None)
    if mfu is not None:
        low = high = mfu
        source = "given by --mfu"
    elif measured:
        low = high = measured[1]
        source = f"measured on {gpu} by the run of --measured"
    else:
        found = PUBLISHED.get((gpu, size or ""), ASSUMED_SMALL if size in SMALL else ASSUMED)
        low, high = found.low, found.high
        source = found.source
        if config.train.activation_checkpointing:
            low, high = RECOMPUTED * low, RECOMPUTED * high
            source += "; a quarter less, as layers are computed again"
        if layout.attention == "window":
            # Keys of other proteins are computed with, and are no work that a share of the peak counts.
            spare = window_keys(config) - min(MEAN_LENGTH, config.model.max_residues + 2)
            share = counted / (counted + 12 * shape.layers * shape.hidden * max(0.0, spare))
            low, high = share * low, share * high
            source += f"; {share:.0%} of that, as attention reads {window_keys(config)} keys a token"
        if config.train.precision == "fp32":
            source += "; that is of bf16, and fp32 takes several times as long"
    rounds = -(-config.packs_per_step // world_size)
    busy = config.packs_per_step / (rounds * world_size)
    peak = PEAKS[gpu] * world_size * busy / counted
    return Speed(low, high, source, low * peak, high * peak, busy)


def residues_of(config: RunFile) -> float:
    """Of the whole run."""
    return config.train.max_steps * config.train.tokens_per_step * FILL


@dataclass(frozen=True)
class Published:
    low: float
    high: float
    source: str
    """Begins with whether it is published or assumed."""


PUBLISHED: dict[tuple[str, str], Published] = {
    # (GPU, size). Low is plain PyTorch, high is Megatron or Transformer Engine, on the same GPUs.
    ("A100", "650M"): Published(0.35, 0.59, f"{NEMO}: PyTorch 24,500 and BioNeMo 42,900 tokens/s"),
    ("A100", "3B"): Published(0.34, 0.61, f"{NEMO}: PyTorch 6,200 and BioNeMo 11,000 tokens/s"),
    ("A100", "15B"): Published(0.33, 0.56, f"{NEMO}: PyTorch 1,150 and BioNeMo 1,930 tokens/s"),
    ("H100", "650M"): Published(0.21, 0.43, f"{NEMO}: PyTorch 46,000 and BioNeMo 96,000 tokens/s"),
    ("H100", "3B"): Published(0.24, 0.49, f"{NEMO}: PyTorch 12,800 and BioNeMo 26,800 tokens/s"),
    ("H100", "15B"): Published(0.23, 0.39, f"{NEMO}: PyTorch 2,430 and BioNeMo 4,150 tokens/s"),
    ("H200", "15B"): Published(
        0.15,
        0.55,
        "published: bionemo-recipes esm2_native_te: FSDP2 with FlashAttention 1,630, with packing 5,950"
        " tokens/s",
    ),
    ("A10G", "8M"): Published(
        0.037,
        0.037,
        "published: AWS's guidance for ESM-2 on HyperPod: 2.3e15 FLOPs in 439 s on two A10G, half of it"
        " padding",
    ),
}
ASSUMED = Published(
    0.20,
    0.40,
    "assumed, as nobody publishes this size on this device: between plain PyTorch and BioNeMo on H100",
)


ASSUMED_SMALL = Published(
    0.04,
    0.20,
    "assumed, as nobody publishes it: models this small wait for launches and data; AWS's guidance has 3.7 %",
)
SMALL = ("8M", "35M")
