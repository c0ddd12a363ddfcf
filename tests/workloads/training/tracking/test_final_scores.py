"""Bounds of the scores at the end of a training, and what is printed of them before it starts."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seqlm.proteins.model.protein_packs import ProteinSplit, ProteinStream
from seqlm.proteins.pretraining.evaluation import split_counts
from seqlm.runs.run_file import load_config
from seqlm.training.packing import PackShape
from seqlm.training.records import RecordSplit
from seqlm.training.scoring import EVALUATION_SEED
from seqlm.training.tracking import final_scores
from seqlm.training.tracking.final_scores import announcement

TOKENS_PER_PACK = 512
MAX_RESIDUES = 126


class TrainerOfPacks:
    """Trainer that counts the packs that it scores, in a world of two processes."""

    def __init__(self, data: Path, final_packs: int) -> None:
        self.validation = ProteinSplit(str(data), "validation")
        self.shape = PackShape.of(self.validation, TOKENS_PER_PACK, MAX_RESIDUES)
        self.here = SimpleNamespace(world_size=2)
        self.config = SimpleNamespace(packs_per_step=4)
        self.objective = SimpleNamespace(
            final_packs=final_packs,
            can_score_any_packs=True,
            split=self.validation,
            open=lambda name: ProteinSplit(str(data), name),
        )
        self.scored_packs: list[int] = []

    def evaluate(self, split: RecordSplit, num_packs: int) -> Any:
        self.scored_packs.append(num_packs)
        return SimpleNamespace(seconds=30.0)


def announced(trainer: Any) -> str:
    return announcement(trainer, trainer.validation)


def num_held_out(data: Path) -> int:
    return sum(ProteinSplit(str(data), name).num_units for name in ("validation", "test"))


def test_all_held_out_records_are_announced_without_a_bound(prepared: Path) -> None:
    trainer = TrainerOfPacks(prepared, final_packs=0)
    number = num_held_out(prepared)
    text = announced(trainer)
    assert text.startswith(f"final scores: {number} of {number} proteins; they take about as long")
    assert "evaluate.packs" not in text
    assert trainer.scored_packs == [], "few packs are not timed"


def test_a_bound_is_announced_with_its_field(prepared: Path) -> None:
    text = announced(TrainerOfPacks(prepared, final_packs=1))
    number = num_held_out(prepared)
    assert f" of {number} proteins; they take about as long as 1 training steps" in text
    assert text.startswith("final scores: about ") and text.endswith(
        "(evaluate.packs=0 scores all)"
    )
    units = int(text.removeprefix("final scores: about ").split()[0])
    assert 2 <= units < number / 2


def test_many_packs_are_timed_with_one_pack_per_process(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_scores, "TIMED_ROUNDS", 2)
    trainer = TrainerOfPacks(prepared, final_packs=2)
    # Two packs of each split are two rounds of two processes, of 30 seconds each.
    assert "they take about 0:01:00" in announced(trainer)
    assert trainer.scored_packs == [2, 2]


def test_counts_of_a_bounded_score_are_those_of_its_packs(prepared: Path, tmp_path: Path) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text(
        f"name: run\ndata: {{path: {prepared}}}\nmodel: {{max_residues: {MAX_RESIDUES}}}\n"
        f"train: {{tokens_per_pack: {TOKENS_PER_PACK}, tokens_per_step: {TOKENS_PER_PACK}}}\n"
    )
    split = ProteinSplit(str(prepared), "validation")
    shape = PackShape.of(split, TOKENS_PER_PACK, MAX_RESIDUES)
    packs = list(islice(ProteinStream(split, shape, EVALUATION_SEED).epoch(0), 2))
    proteins, residues = split_counts(load_config(run_file, ["evaluate.packs=2"]), "validation")
    assert proteins.used == sum(len(pack.units) for pack in packs) < split.num_units
    assert proteins.read == split.num_records
    assert residues.used == sum(pack.num_record_tokens for pack in packs)
    [whole, _] = split_counts(load_config(run_file, ["evaluate.packs=0"]), "validation")
    assert whole.used == split.num_units
