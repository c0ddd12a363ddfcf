"""Part of the scorecard, such as contacts. Its comparisons are computed once for all models."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from seqlm.proteins.inference.job import Command
from seqlm.proteins.reading.counts import Counts

from .prepared_data import PreparedData
from .row import Row

SEED = 0
"""Seed of the drawn proteins and of the synthetic assay's noise."""


class Part(ABC):
    """Part of the scorecard, with the values that its scores are compared with.

    Args:
        prepared: prepared proteins of the run file.
    """

    name: ClassVar[str]
    is_shared: ClassVar[bool] = False
    """True if all processes compute the part together; False if the first one computes it alone."""

    def __init__(self, prepared: PreparedData) -> None:
        self.prepared = prepared

    @abstractmethod
    def rows(self, command: Command) -> list[Row]:
        """Return the rows of a model. Of a shared part, those of the first process count."""

    @abstractmethod
    def counts(self) -> Sequence[Counts]:
        """Return the numbers of what the part reads, uses and leaves out."""
