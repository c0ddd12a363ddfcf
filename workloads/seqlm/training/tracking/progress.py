"""Progress and rates of a run, and progress of other long computations."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

import torch

from seqlm.training.hardware import peak_flops, peak_memory_bytes
from seqlm.training.packing import Position
from seqlm.training.step.loader import StepPacks
from seqlm.training.strict_yaml import shown

WARM_STEPS = 3
"""First steps of each process, which compile layers and create kernels. Steady rates leave them out."""
PROGRESS_SECONDS = 10
"""Time between two lines."""


@dataclass
class Progress:
    """Totals of a run so far. Every checkpoint stores them by these names."""

    step: int = 0
    """Number of optimizer steps."""
    epoch: int = 0
    pack: int = 0
    """Number of packs of the epoch that the run has consumed."""
    block: int = 0
    """Number of the block of the last of these packs, in the order of the epoch."""
    block_packs: int = 0
    """Number of packs of this block that the run has consumed. Old checkpoints lack both."""
    proteins: int = 0
    """Number of records that the run has trained on."""
    residues: int = 0
    """Number of tokens of these records, without special tokens and padding."""
    attended_pairs: int = 0
    """Sum of their squared segment lengths."""
    slots: int = 0
    """Number of tokens of the packs, padding included."""
    loss_sum: float = 0.0
    """Sum of the steps' losses, for the mean ``train_loss``. A loss is added when it is read."""
    seconds: float = 0.0
    """Time of all starts."""
    steady_seconds: float = 0.0
    """Time without first steps, evaluations and checkpoints. Old checkpoints lack the steady totals."""
    steady_residues: int = 0
    steady_attended_pairs: int = 0
    steady_slots: int = 0
    guard_loss: float | None = None
    """Loss on the guard's split before training."""

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> "Progress":
        """Return the totals that a checkpoint stores.

        Raises:
            ValueError: if they are not those of a run.
        """
        if "step" not in saved:
            raise ValueError("the checkpoint has the progress of no step; give another checkpoint")
        numbers = {item.name: item.type for item in fields(cls)}
        for name, value in saved.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if name not in numbers or not (is_number or (name == "guard_loss" and value is None)):
                raise ValueError(
                    f"the checkpoint has the progress {shown(name)}: {shown(value)}; expected a number for "
                    f"one of {', '.join(numbers)}; give another checkpoint"
                )
            if numbers[name] is int and (not isinstance(value, int) or value < 0):
                raise ValueError(
                    f"the checkpoint has the progress {name}: {shown(value)}; expected a whole number from 0 "
                    "on; give another checkpoint"
                )
        return cls(**saved)

    @property
    def position(self) -> Position:
        """Position in the data after the last step."""
        return Position(self.epoch, self.pack, self.block, self.block_packs)

    def add(self, step: StepPacks) -> None:
        """Count a step."""
        self.step += 1
        self.epoch = step.after.epoch
        self.pack = step.after.pack
        self.block = step.after.block
        self.block_packs = step.after.block_packs
        self.proteins += step.num_records
        self.residues += step.num_record_tokens
        self.attended_pairs += step.num_attended_pairs
        self.slots += step.num_tokens

    def length_weighted_mean(self, special_tokens: int) -> float:
        """Return the mean length L of the records weighted by length, sum of L**2 over sum of L."""
        # attended_pairs is the sum of (L + S)**2 = L**2 + 2 S L + S**2 for S special tokens.
        linear_terms = 2 * special_tokens * self.residues
        constant_terms = special_tokens**2 * self.proteins
        return (self.attended_pairs - linear_terms - constant_terms) / max(1, self.residues)


class Window:
    """Rates since the last measurement, and totals of the steady steps.

    Call ``measure`` after the host has waited for the device, because launched steps are not finished.

    Args:
        progress: totals of the run, to which the steady totals are added.
        num_flops: function of the numbers of record tokens and of attended pairs that returns their model
            FLOPs.
        device: device of this process.
        world_size: number of processes.
    """

    def __init__(
        self,
        progress: Progress,
        num_flops: Callable[[int, int], float],
        device: torch.device,
        world_size: int,
    ) -> None:
        self._progress = progress
        self._num_flops = num_flops
        self._device = device
        self._world_size = world_size
        self._steps = 0
        self.begin()

    def next_step(self) -> None:
        """Count a step that begins. The first steady step begins a measurement."""
        if self._steps == WARM_STEPS:
            self.begin()
        self._steps += 1

    def begin(self) -> None:
        """Restart the measurement, and so leave out the time since the last one."""
        self._started = time.monotonic()
        self._before = replace(self._progress)

    def measure(self) -> dict[str, float | None]:
        """Return rates since the last measurement and totals so far, by their names in the log."""
        progress = self._progress
        before = self._before
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
    """Progress of a long computation, printed every ``PROGRESS_SECONDS``.

    Args:
        doing: first word of each line.
        total: amount of work.
        unit: unit of ``total``; with one, lines also have the rate and the remaining time.
        shows: whether this process prints lines.
    """

    def __init__(self, doing: str, total: int, unit: str = "", *, shows: bool = True) -> None:
        self._doing = doing
        self._total = total
        self._unit = unit
        self._shows = shows
        self._done = 0
        self._began = time.monotonic()
        self._shown = self._began
        """Time of the last line."""

    def add(self, number: int) -> None:
        """Count work that is done."""
        self._done += number
        now = time.monotonic()
        if not self._shows or now - self._shown < PROGRESS_SECONDS:
            return
        self._shown = now
        unit = f" {self._unit}" if self._unit else ""
        line = f"{self._doing}: {self._done:,} of {self._total:,}{unit} ({self._done / self._total:.0%})"
        if self._unit:
            rate = self._done / (now - self._began)
            left = timedelta(seconds=round((self._total - self._done) / rate))
            line += f", {rate:,.0f} {self._unit}/s, ETA {left}"
        print(line, file=sys.stderr)
