"""Extent of the final scores of a run: how many records they read, and how long that takes.

It is printed before the training starts, because a held-out split may take longer than the training.
"""

from dataclasses import dataclass
from datetime import timedelta

from seqlm.training.objective import Objective
from seqlm.training.packing import PackShape
from seqlm.training.records import RecordSplit
from seqlm.training.trainer import Trainer

SCORED = "scored"
"""Result with the numbers of records that the final scores read, of all."""
TIMED_ROUNDS = 100
"""Rounds of one pack per process from which on a pack is timed. Below, the timing itself would be noticed."""
PASSES_OF_A_STEP = 3
"""Cost of a training pack over that of a scored one: its backward pass is twice its forward pass."""


def scored_text(num_scored: int, num_units: int, records: str) -> str:
    """Return how much of a split is scored: ``3,500 of 50,000 proteins``."""
    return f"{num_scored:,} of {num_units:,} {records}"


@dataclass(frozen=True)
class _Extent:
    """Expected extent of the scores of one split, from mean lengths."""

    packs: int
    units: int
    """Number of records or clusters that these packs have."""
    num_units: int
    """Number of records or clusters of the split."""


def _extent(split: RecordSplit, shape: PackShape, num_packs: int) -> _Extent:
    """Return the expected extent of a score.

    Args:
        split: records to score.
        shape: shape of the packs.
        num_packs: largest number of packs; 0 scores all.
    """
    mean_tokens = min(shape.max_record_tokens, split.num_tokens / split.num_records)
    units_per_pack = max(1.0, shape.num_tokens / (mean_tokens + shape.special_tokens))
    all_packs = max(1, round(split.num_units / units_per_pack))
    if num_packs == 0 or all_packs <= num_packs:
        return _Extent(all_packs, split.num_units, split.num_units)
    return _Extent(num_packs, round(num_packs * units_per_pack), split.num_units)


def opened_test_split(objective: Objective) -> RecordSplit | None:
    """Return the test split; None if it has no records."""
    if objective.split.manifest.splits["test"].records:
        return objective.open("test")
    return None


def announcement(trainer: Trainer, validation: RecordSplit) -> str:
    """Return a line with the extent and the duration of the final scores. Every process calls this.

    Args:
        trainer: trainer before its first step.
        validation: validation split.
    """
    objective = trainer.objective
    extents = [
        _extent(split, trainer.shape, objective.final_packs)
        for split in (validation, opened_test_split(objective))
        if split is not None
    ]
    packs = sum(extent.packs for extent in extents)
    units = sum(extent.units for extent in extents)
    num_units = sum(extent.num_units for extent in extents)
    world_size = trainer.here.world_size
    rounds = -(-packs // world_size)
    if objective.can_score_any_packs and rounds >= TIMED_ROUNDS:
        trainer.evaluate(validation, world_size)  # layers may be compiled for it
        seconds = trainer.evaluate(validation, world_size).seconds * rounds
        duration = f"take about {timedelta(seconds=round(seconds))}"
    else:
        steps = packs / (PASSES_OF_A_STEP * trainer.config.packs_per_step)
        duration = f"take about as long as {max(1, round(steps)):,} training steps"
    is_bounded = units < num_units
    about = "about " if is_bounded else ""
    text = (
        f"final scores: {about}{scored_text(units, num_units, validation.records)}; they {duration}"
    )
    return f"{text} (evaluate.packs=0 scores all)" if is_bounded else text
