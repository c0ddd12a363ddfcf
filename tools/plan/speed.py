"""Residues per second, from which the time of a run follows.

This repository counts 6 FLOPs per parameter and token, and 12 L C per pair of attended positions. A run's own
results (``--measured``) take precedence over the known shares of a GPU's peak (``rates.py``).
"""

import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

from seqlm.runs.run_file import RunFile
from seqlm.training.peak_rates import NEURON_CORE_BF16_FLOPS, PEAK_BF16_FLOPS
from tools.plan.memory import Layout, window_keys
from tools.plan.rates import Share, known_share

MEAN_LENGTH = 414.0
"""Mean number of positions that a residue attends to: the sum of squared lengths divided by the sum of
lengths. Lengths are like UniRef50's (log-normal, median 200, sigma 0.75), cropped to 1,022 residues."""
FILL = 0.99
"""Share of residues in a pack, as measured (README); the rest is CLS, EOS and padding."""
PEAKS = PEAK_BF16_FLOPS | NEURON_CORE_BF16_FLOPS
"""FLOP/s of the device of one process: a GPU, or a logical NeuronCore under its accelerator's name."""

RECOMPUTED = 0.75
"""Factor of the rate if layers are recomputed in the backward pass, with 8 FLOPs per parameter and token
instead of 6. MFU counts 6 in both cases. The measured rates are without recomputation. Sources of published
rates do not state which one they measured."""


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
    layout: Layout,
    *,
    gpu: str,
    mfu: float | None = None,
    measured: Measured | None = None,
    gpu_share: float = 1.0,
) -> Speed:
    """Return the speed at the given MFU, else at that of a run, else at the known one.

    Args:
        layout: run on its devices.
        gpu: accelerator, by its name in ``PEAKS``.
        mfu: MFU to assume; None looks it up.
        measured: speed of a finished run on the same GPU.
        gpu_share: share of the GPU that one process has.

    Raises:
        ValueError: if the measurement is from another GPU.
    """
    if measured and measured.gpu != gpu:
        raise ValueError(
            f"--measured: the run was on {measured.gpu}, and the cluster has {gpu}; set --mfu"
        )
    if mfu is not None:
        share = Share(mfu, mfu, "given by --mfu")
    elif measured:
        share = Share(measured.mfu, measured.mfu, f"measured on {gpu} by the run of --measured")
    else:
        share = _known(layout, gpu)
    packs = layout.config.packs_per_step
    rounds = ceil(packs / layout.world_size)
    busy = packs / (rounds * layout.world_size)
    peak = gpu_share * PEAKS[gpu]
    residues_at_peak = peak * layout.world_size * busy / flops_per_residue(layout)
    source = share.source if gpu_share == 1 else f"{share.source}; not measured on a slice of a GPU"
    return Speed(
        mfu_low=share.low,
        mfu_high=share.high,
        source=source,
        residues_per_second_low=share.low * residues_at_peak,
        residues_per_second_high=share.high * residues_at_peak,
        busy=busy,
    )


def _known(layout: Layout, gpu: str) -> Share:
    """Return the known share, reduced for settings that its source does not have."""
    config = layout.config
    shape = layout.shape
    low, high, source = known_share(layout, gpu)
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
    return Share(factor * low, factor * high, source)


def residues_of(config: RunFile) -> float:
    """Return the residues of the whole run."""
    return config.train.max_steps * config.train.tokens_per_step * FILL
