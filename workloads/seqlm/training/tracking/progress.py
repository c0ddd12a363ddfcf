"""Progress and rates of a run, and progress of other long computations."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import torch

from seqlm.training.hardware import peak_flops, peak_memory_bytes
from seqlm.training.loader import StepPacks

WARM_STEPS = 3
"""First steps of each process, which steady rates leave out: they compile layers and make kernels."""
PROGRESS_SECONDS = 10
"""Seconds between two lines."""


@dataclass
class Progress:
    """Totals of a run so far, which every checkpoint holds."""

    step: int = 0
    epoch: int = 0
    pack: int = 0
    """Packs of the epoch that the run has consumed."""
    proteins: int = 0
    residues: int = 0
    attended_pairs: int = 0
    slots: int = 0
    loss_sum: float = 0.0
    """Sum of the steps' losses, for the mean that Trainer calls train_loss; added when losses are read."""
    seconds: float = 0.0
    steady_seconds: float = 0.0
    """Seconds without first steps, evaluations and checkpoints; older checkpoints lack it and its counts."""
    steady_residues: int = 0
    steady_attended_pairs: int = 0
    steady_slots: int = 0
    guard_loss: float | None = None
    """Loss on the guard's split before training."""

    def add(self, step: StepPacks) -> None:
        self.step += 1
        self.epoch, self.pack = step.after.epoch, step.after.pack
        self.proteins += step.num_records
        self.residues += step.num_record_tokens
        self.attended_pairs += step.num_attended_pairs
        self.slots += step.num_tokens

    def length_weighted_mean(self, special_tokens: int) -> float:
        """Return the mean length in residues, weighted by the length L: sum of L**2 over sum of L."""
        # The attended pairs are the sum of (L + special_tokens)**2.
        others = 2 * special_tokens * self.residues + special_tokens**2 * self.proteins
        return (self.attended_pairs - others) / max(1, self.residues)


class Window:
    """Rates since the last measurement; adds up the steady steps of a progress.

    ``measure`` comes after the host has waited for the device: launched steps alone do not count.
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
        self._steps = 0
        self.begin()

    def next_step(self) -> None:
        """Count a step that begins; the first steady one begins a measurement."""
        if self._steps == WARM_STEPS:
            self.begin()
        self._steps += 1

    def begin(self) -> None:
        """Restart the measurement, without what happened since the last one."""
        self._started = time.monotonic()
        self._before = replace(self._progress)

    def measure(self) -> dict[str, float | None]:
        """Return rates since the last measurement and totals so far, by their names in the log."""
        progress, before = self._progress, self._before
        seconds = time.monotonic() - self._started
        residues = progress.residues - before.residues
        pairs = progress.attended_pairs - before.attended_pairs
        slots = progress.slots - before.slots
        flops = self._num_flops(residues, pairs)
        peak = peak_flops(self._device)
        if self._steps > WARM_STEPS:
            progress.steady_seconds += seconds
            progress.steady_residues += residues
            progress.steady_attended_pairs += pairs
            progress.steady_slots += slots
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


class WorkProgress:
    """Print how much of ``total`` is done, every ``PROGRESS_SECONDS``.

    Args:
        doing: first word of each line.
        total: amount of work.
        unit: unit of ``total``. With one, lines also have the rate and the remaining time.
        shows: whether this process prints.
    """

    def __init__(self, doing: str, total: int, unit: str = "", *, shows: bool = True) -> None:
        self._doing, self._total, self._unit, self._shows = doing, total, unit, shows
        self._done, self._began = 0, time.monotonic()
        self._shown = self._began

    def add(self, number: int) -> None:
        """Count work that is done."""
        self._done += number
        now = time.monotonic()
        if not self._shows or now - self._shown < PROGRESS_SECONDS:
            return
        self._shown = now
        line = f"{self._doing}: {self._done:,} of {self._total:,}{self._unit and f' {self._unit}'}"
        line += f" ({self._done / self._total:.0%})"
        if self._unit:
            rate = self._done / (now - self._began)
            left = timedelta(seconds=round((self._total - self._done) / rate))
            line += f", {rate:,.0f} {self._unit}/s, ETA {left}"
        print(line, file=sys.stderr)
