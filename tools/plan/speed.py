"""Residues per second, from which the time of a run follows.

This repository counts 6 FLOPs per parameter and token, and 12 L C per pair of attended positions. The
published shares of a GPU's peak (MFU) were not measured with this code, so a run's own results take
precedence (``--measured``).
"""

import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.runs.run_file import RunFile
from seqlm.training.peak_rates import NEURON_CORE_BF16_FLOPS, PEAK_BF16_FLOPS
from tools.plan.memory import Layout, window_keys

NEMO = "published: BioNeMo 2's documentation, chart of pre-training throughput"
MEAN_LENGTH = 414.0
"""Mean number of positions that a residue attends to: the sum of squared lengths divided by the sum of
lengths. Lengths are like UniRef50's (log-normal, median 200, sigma 0.75), cropped to 1,022 residues."""
FILL = 0.99
"""Share of residues in a pack, as measured (README); the rest is CLS, EOS and padding."""
PEAKS = PEAK_BF16_FLOPS | NEURON_CORE_BF16_FLOPS
"""FLOP/s of the device of one process: a GPU, or a logical NeuronCore under its accelerator's name."""

RECOMPUTED = 0.75
"""Factor of the rate if layers are recomputed in the backward pass, with 8 FLOPs per parameter and token
instead of 6. MFU counts 6 in both cases. Sources of published rates do not state which one they measured."""


@dataclass(frozen=True)
class Speed:
    mfu_low: float
    mfu_high: float
    source: str
    residues_per_second_low: float
    """Rate of all GPUs together."""
    residues_per_second_high: float
    busy: float
    """Mean share of GPUs that have a pack in a round of a step."""


class Published(NamedTuple):
    """Share of a GPU's peak (MFU)."""

    low: float
    """Share of plain PyTorch."""
    high: float
    """Share of Megatron or Transformer Engine, on the same GPUs."""
    source: str
    """Source of both; begins with "published" or "assumed"."""


class Measured(NamedTuple):
    """Speed of a finished run."""

    gpu: str
    """Accelerator, by its name in ``PEAKS``."""
    mfu: float


def read_measured(path: Path) -> Measured:
    """Return the speed of a finished run from its ``results.json``.

    Raises:
        ValueError: if the file is not one, or the run was on a device without a known peak, such as a CPU.
    """
    try:
        results = json.loads(path.read_text())
        mfu = results["mfu"]
        device = results["environment"]["device"]
    except (OSError, json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(
            f"--measured: got {path}; set a run's results, for example runs/<name>/results.json"
        ) from None
    gpu = next((name for name in sorted(PEAKS, key=len, reverse=True) if name in device), None)
    if not mfu or gpu is None:
        raise ValueError(
            f"--measured: {path} is from a run on {device}, whose MFU is unknown; set the results of a "
            f"run on one of {', '.join(PEAKS)}"
        )
    return Measured(gpu, mfu)


def flops_per_residue(layout: Layout) -> float:
    """Return the FLOPs as the trainer counts them: 4 for a frozen parameter, which has no gradient."""
    config = layout.config
    shape = layout.shape
    parameters = layout.parameters
    counted_out = shape.embedding + shape.contact_head
    frozen = parameters.frozen + parameters.frozen_matrices
    if config.task is None or config.lora is None:
        weights = 6 * (parameters.total - counted_out)
    else:
        weights = 6 * parameters.trained + 4 * max(0, frozen - counted_out)
    longest = config.model.max_residues + 2
    return weights + 12 * shape.layers * shape.hidden * min(MEAN_LENGTH, longest)


def speed(
    layout: Layout, *, gpu: str, mfu: float | None = None, measured: Measured | None = None
) -> Speed:
    """Return the speed at the given MFU, else the measured one, else the published one.

    Raises:
        ValueError: if the measurement is from another GPU.
    """
    if measured and measured.gpu != gpu:
        raise ValueError(
            f"--measured: the run was on {measured.gpu}, and the cluster has {gpu}; set --mfu"
        )
    if mfu is not None:
        share = Published(mfu, mfu, "given by --mfu")
    elif measured:
        share = Published(measured.mfu, measured.mfu, f"measured on {gpu} by the run of --measured")
    else:
        share = _published(layout, gpu)
    packs = layout.config.packs_per_step
    rounds = ceil(packs / layout.world_size)
    busy = packs / (rounds * layout.world_size)
    residues_at_peak = PEAKS[gpu] * layout.world_size * busy / flops_per_residue(layout)
    return Speed(
        mfu_low=share.low,
        mfu_high=share.high,
        source=share.source,
        residues_per_second_low=share.low * residues_at_peak,
        residues_per_second_high=share.high * residues_at_peak,
        busy=busy,
    )


def _published(layout: Layout, gpu: str) -> Published:
    """Return the published or assumed share, reduced for settings that its source does not have."""
    config = layout.config
    shape = layout.shape
    family = MODEL_FAMILIES[config.model.family]
    size = next((name for name in family.sizes if family.published_shape(name) == shape), None)
    assumed = ASSUMED_SMALL if size in SMALL else ASSUMED
    low, high, source = PUBLISHED.get((gpu, size or ""), assumed)
    factor = 1.0
    if config.train.activation_checkpointing:
        factor *= RECOMPUTED
        source += "; a quarter less, because layers are recomputed"
    if layout.attention == "window":
        # Attention also computes keys of other proteins, which MFU does not count.
        counted = flops_per_residue(layout)
        spare_keys = window_keys(config) - min(MEAN_LENGTH, config.model.max_residues + 2)
        spare = 12 * shape.layers * shape.hidden * max(0.0, spare_keys)
        useful = counted / (counted + spare)
        factor *= useful
        source += (
            f"; {useful:.0%} of that, because attention reads {window_keys(config)} keys per token"
        )
    if config.train.precision == "fp32":
        source += "; this is for bf16, and fp32 takes several times as long"
    return Published(factor * low, factor * high, source)


def residues_of(config: RunFile) -> float:
    """Return the residues of the whole run."""
    return config.train.max_steps * config.train.tokens_per_step * FILL


PUBLISHED: dict[tuple[str, str], Published] = {
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
"""Published shares by GPU and size of the model."""
ASSUMED = Published(
    0.20,
    0.40,
    "assumed, because no rate is published for this size and device: plain PyTorch to BioNeMo on H100",
)
"""Assumption for other pairs of a GPU and a size."""
ASSUMED_SMALL = Published(
    0.04,
    0.20,
    "assumed, because no rate is published: small models wait for launches and data; AWS has 3.7 %",
)
"""Assumption for small models."""
SMALL = ("8M", "35M")
"""Sizes of small models."""
