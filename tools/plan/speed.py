"""Residues per second, from which the time of a run follows.

This repository counts 6 FLOPs per parameter and token, and 12 L C per pair of attended positions. The
published shares of a GPU's peak (MFU) were not measured with this code, so a run's own results take
precedence (``--measured``).
"""

import json
from dataclasses import dataclass
from pathlib import Path

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


def read_measured(path: Path) -> tuple[str, float]:
    """Return the accelerator and the MFU of a finished run from its ``results.json``.

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
    return gpu, mfu


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
    layout: Layout, *, gpu: str, mfu: float | None = None, measured: tuple[str, float] | None = None
) -> Speed:
    """Return the speed at the given MFU, else the measured one (``read_measured``), else the published one.

    Raises:
        ValueError: if the measurement is from another GPU.
    """
    if measured and measured[0] != gpu:
        raise ValueError(f"--measured: the run was on {measured[0]}, and the cluster has {gpu}; set --mfu")
    config = layout.config
    shape = layout.shape
    world_size = layout.world_size
    counted = flops_per_residue(layout)
    family = MODEL_FAMILIES[config.model.family]
    size = next((name for name in family.sizes if family.published_shape(name) == shape), None)
    if mfu is not None:
        low = high = mfu
        source = "given by --mfu"
    elif measured:
        low = high = measured[1]
        source = f"measured on {gpu} by the run of --measured"
    else:
        assumed = ASSUMED_SMALL if size in SMALL else ASSUMED
        low, high, source = PUBLISHED.get((gpu, size or ""), assumed)
        if config.train.activation_checkpointing:
            low = RECOMPUTED * low
            high = RECOMPUTED * high
            source += "; a quarter less, because layers are recomputed"
        if layout.attention == "window":
            # Attention also computes keys of other proteins, which MFU does not count.
            spare = window_keys(config) - min(MEAN_LENGTH, config.model.max_residues + 2)
            share = counted / (counted + 12 * shape.layers * shape.hidden * max(0.0, spare))
            low = share * low
            high = share * high
            source += f"; {share:.0%} of that, because attention reads {window_keys(config)} keys per token"
        if config.train.precision == "fp32":
            source += "; this is for bf16, and fp32 takes several times as long"
    rounds = -(-config.packs_per_step // world_size)
    busy = config.packs_per_step / (rounds * world_size)
    peak = PEAKS[gpu] * world_size * busy / counted
    return Speed(low, high, source, low * peak, high * peak, busy)


def residues_of(config: RunFile) -> float:
    """Return the residues of the whole run."""
    return config.train.max_steps * config.train.tokens_per_step * FILL


Published = tuple[float, float, str]
"""Lowest and highest share, and the source; it begins with "published" or "assumed"."""
PUBLISHED: dict[tuple[str, str], Published] = {
    # The key is (GPU, size). Low is plain PyTorch, high is Megatron or Transformer Engine, on the same GPUs.
    ("A100", "650M"): (0.35, 0.59, f"{NEMO}: PyTorch 24,500 and BioNeMo 42,900 tokens/s"),
    ("A100", "3B"): (0.34, 0.61, f"{NEMO}: PyTorch 6,200 and BioNeMo 11,000 tokens/s"),
    ("A100", "15B"): (0.33, 0.56, f"{NEMO}: PyTorch 1,150 and BioNeMo 1,930 tokens/s"),
    ("H100", "650M"): (0.21, 0.43, f"{NEMO}: PyTorch 46,000 and BioNeMo 96,000 tokens/s"),
    ("H100", "3B"): (0.24, 0.49, f"{NEMO}: PyTorch 12,800 and BioNeMo 26,800 tokens/s"),
    ("H100", "15B"): (0.23, 0.39, f"{NEMO}: PyTorch 2,430 and BioNeMo 4,150 tokens/s"),
    ("H200", "15B"): (
        0.15,
        0.55,
        "published: bionemo-recipes esm2_native_te: FSDP2 with FlashAttention 1,630, with packing 5,950"
        " tokens/s",
    ),
    ("A10G", "8M"): (
        0.037,
        0.037,
        "published: AWS's guidance for ESM-2 on HyperPod: 2.3e15 FLOPs in 439 s on two A10G, half of it"
        " padding",
    ),
}
ASSUMED: Published = (
    0.20,
    0.40,
    "assumed, because no rate is published for this size and device: plain PyTorch to BioNeMo on H100",
)
ASSUMED_SMALL: Published = (
    0.04,
    0.20,
    "assumed, because no rate is published: small models wait for launches and data; AWS has 3.7 %",
)
SMALL = ("8M", "35M")
