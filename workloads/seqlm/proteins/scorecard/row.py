"""Row of the scorecard: one score of a model, and the values that it is compared with."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Values of a score that need no language model, on the same data."""

    chance: float
    """Value that chance, or the composition of the data, gives."""
    chance_of: str
    """Description of that."""
    baseline: float
    """Value of counted or fitted residues."""
    baseline_of: str
    """Description of that."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Score of a model."""

    name: str
    value: float
    data: str
    """Description of the data, with their size."""
    protocol: str
    """Description of the method."""
    compared: Comparison
    best: float = 1.0
    """Largest possible value, or the smallest one if lower values are better."""
    scale: Literal["linear", "log"] = "linear"
    """Scale of the picture."""
    data_sha256: str | None = None
    """Hash of the data and of the settings that the score depends on; None for data that are not bundled or
    prepared here."""
    published: float | None = None
    """Published value of this model; None if there is none that can be compared."""

    @property
    def is_lower_better(self) -> bool:
        """Whether lower values are better."""
        return self.best < self.compared.chance

    def share(self, value: float) -> float:
        """Return the place of a value between chance (0) and the best value (1)."""
        chance = self._scaled(self.compared.chance)
        return (self._scaled(value) - chance) / (self._scaled(self.best) - chance)

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.scale == "log" else value

    def document(self) -> dict[str, object]:
        """Return the row for JSON and CSV. An undefined number is None."""
        return {
            "name": self.name,
            "value": _finite(self.value),
            "better": "lower" if self.is_lower_better else "higher",
            "chance": _finite(self.compared.chance),
            "chance_of": self.compared.chance_of,
            "baseline": _finite(self.compared.baseline),
            "baseline_of": self.compared.baseline_of,
            "published": self.published,
            "data": self.data,
            "protocol": self.protocol,
            "data_sha256": self.data_sha256,
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
