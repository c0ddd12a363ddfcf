"""Scores of one model, beside those of other models on the same data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .references import Reference
from .row import Row


@dataclass(frozen=True)
class ModelScores:
    """Scores of one model."""

    model: str
    settings: dict[str, object]
    """Settings that the scores depend on."""
    rows: list[Row] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of each part. Those of the first model include the baselines."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the page."""

    def document(self, others: Sequence[Reference]) -> dict[str, Any]:
        """Return the scores for JSON.

        Args:
            others: models of the file of references.
        """
        scores = [{**row.document(), "known": known_values(row, others)} for row in self.rows]
        return {**self.settings, "seconds": self.seconds, "scores": scores}


def known_values(row: Row, others: Iterable[Reference]) -> dict[str, float]:
    """Return the values of other models on the same data, by model."""
    found = {}
    for one in others:
        value = one.value_of(row)
        if value is not None:
            found[one.model] = value
    return found
