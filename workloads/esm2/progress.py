"""How far a run has come, and how fast it goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from .hardware import peak_flops, peak_memory_bytes
from .loader import StepPacks


@dataclass
class Progress:
    """What a run has done so far; saved with every checkpoint."""

    step: int = 0
    epoch: int = 0
    pack: int = 0
    """Packs of the epoch that are consumed."""
    proteins: int = 0
    residues: int = 0
    attended_pairs: int = 0
    slots: int = 0
    loss_sum: float = 0.0
    """Sum of the steps' losses, for the mean that Trainer calls train_loss; added when losses are read."""
    seconds: float = 0.0

    def add(self, step: StepPacks) -> None:
        self.step += 1
        self.epoch, self.pack = step.after.epoch, step.after.pack
        self.proteins += step.num_proteins
        self.residues += step.num_residues
        self.attended_pairs += step.num_attended_pairs
        self.slots += step.num_tokens


class Window:
    """Rates since the last measurement.

    ``num_flops`` gives the model FLOPs of residues and attended pairs.
    """

    def __init__(
        self,
        progress: Progress,
        num_flops: Callable[[int, int], float],
        device: torch.device,
        world_size: int,
    ) -> None:
        self._progress, self._num_flops = progress, num_flops
        self._device, self._world_size = device, world_size
        self.begin()

    def begin(self) -> None:
        """Start anew; what happened since the last measurement does not count."""
        self._started = time.monotonic()
        self._before = replace(self._progress)

    def measure(self) -> dict[str, float | None]:
        """Rates since the last measurement and totals so far, by their names in the log."""
        progress, before = self._progress, self._before
        seconds = time.monotonic() - self._started
        residues = progress.residues - before.residues
        flops = self._num_flops(residues, progress.attended_pairs - before.attended_pairs)
        peak = peak_flops(self._device)
        slots = progress.slots - before.slots
        self.begin()
        return {
            "epoch": progress.epoch,
            "residues": progress.residues,
            "residues_per_second": residues / seconds,
            "fill": residues / max(1, slots),
            "mfu": flops / seconds / self._world_size / peak if peak else None,
            "peak_memory_bytes": peak_memory_bytes(self._device),
            "seconds": progress.seconds,
        }
