"""Expected gains of the trainer's kernels in milliseconds per pack, against which they are judged.

The parts were measured as prototypes, each alone. A kernel of the trainer may gain more or less. Until the
stage that measures the trainer's own kernels has run on a GPU, no gain of theirs is proven.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from seqlm.training.kernels import ACTIVATION, ATTENTION, GRAPH, PRODUCTS

CONDITIONS = (
    "Prototypes beside the trainer of commit a69db57, on one NVIDIA H200 (CUDA 13.0), torch 2.11.0, triton "
    "3.6.0, bf16, in packs of 65,536 tokens (8M, 35M) and 16,384 tokens (650M)."
)
"""Machine, versions and packs of all measurements in ``GAINS``."""
MASKING = "masking"
"""Masks of a step's packs, each drawn beside the pass before it. This change has no switch."""
Basis = Literal["measured", "derived"]


@dataclass(frozen=True)
class Gain:
    """Expected gain of one change at one size of ESM-2."""

    step: int
    """Place in the order in which the changes are measured, each on top of those before it."""
    name: str
    """Name in ``seqlm.training.kernels.KERNELS``, or ``MASKING``."""
    size: str
    part: str
    """Part of a pack's work whose time was measured or derived."""
    before_ms: float
    """Time of the part without the change."""
    after_ms: float
    times: int
    """Number of such parts in a pack."""
    basis: Basis

    @property
    def ms_per_pack(self) -> float:
        return self.times * (self.before_ms - self.after_ms)


GAINS = (
    Gain(0, MASKING, "8M", "a pack of a step of 8", 34.3, 30.4, 1, "measured"),
    # 4 % of the 82.9 ms that a pack takes in steps of the recipe.
    Gain(0, MASKING, "35M", "a pack of a step of 32", 82.9, 79.6, 1, "derived"),
    Gain(1, ATTENTION, "8M", "a layer, forward and backward", 4.70, 3.36, 6, "measured"),
    Gain(1, ATTENTION, "650M", "a layer, forward and backward", 4.66, 4.36, 33, "measured"),
    Gain(2, PRODUCTS, "8M", "a pack, gradients added up", 30.27, 30.03, 1, "measured"),
    # 3.5 ms for adding up gradients, and the rest for casts of weights: 2.5 % of a pack.
    Gain(2, PRODUCTS, "650M", "a pack", 166.6, 162.4, 1, "derived"),
    Gain(3, GRAPH, "8M", "a pack on the device", 30.27, 29.83, 1, "measured"),
    # The last layer computes its GELU on the predicted tokens alone, so it does not count.
    Gain(4, ACTIVATION, "8M", "GELU of a layer, forward", 0.121, 0.091, 5, "measured"),
    Gain(4, ACTIVATION, "650M", "GELU of a layer, forward", 0.120, 0.088, 32, "measured"),
)
EXPECTED: Mapping[tuple[str, str], Gain] = {(gain.name, gain.size): gain for gain in GAINS}
"""Gains by name of the change and size. A pair that was neither measured nor derived is missing."""


def rows() -> list[dict[str, str]]:
    """Return the rows of the table in docs/performance.md."""
    found: list[dict[str, str]] = []
    for gain in GAINS:
        found.append(
            {
                "step": f"{gain.step}. {gain.name}",
                "model": gain.size,
                "part": gain.part,
                "before, ms": f"{gain.before_ms:g}",
                "after, ms": f"{gain.after_ms:g}",
                "times": str(gain.times),
                "gain, ms per pack": f"{gain.ms_per_pack:.2f}",
                "basis": gain.basis,
            }
        )
    return found
