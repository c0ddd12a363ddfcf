"""Cases of the acceptance run, and what a stage needs to run one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Case:
    """One measurement, run in a process of its own with a deadline."""

    stage: str
    """Name of the module in ``benchmarks/stages``."""
    size: str
    """Published size of ESM-2, or ``-`` if the case has none."""
    contestant: str
    """What is measured, such as ``ours``, ``lora`` or ``varlen``."""
    shape: str
    """Shape or setting that sets the case apart, such as ``tokens_per_pack=16384``."""
    seconds: float
    """Expected wall time on one H100 in seconds, including imports and compilation."""

    @property
    def id(self) -> str:
        return f"{self.stage}/{self.size}/{self.contestant}/{self.shape}"


@dataclass(frozen=True)
class Settings:
    """Conditions shared by all cases of a run."""

    data: Path
    """Prepared folder of proteins."""
    device: torch.device
    rehearsal: bool
    """Use shapes that a CPU finishes in seconds, to show that every case runs."""


class Stage(Protocol):
    """Module of ``benchmarks/stages`` with the cases of one stage."""

    def cases(self, settings: Settings) -> list[Case]:
        """Return the cases in the order in which they run."""

    def run(self, case: Case, settings: Settings) -> dict[str, Any]:
        """Run one case in the current process.

        Returns:
            Figures as JSON values. ``verdict`` is ``passed``, ``missed``, ``measured`` or ``out of memory``.
        """
