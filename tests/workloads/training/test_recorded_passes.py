"""Passes that are recorded once and replayed, rehearsed on the CPU, against passes that are launched."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from seqlm.language.objective import CausalLM
from seqlm.proteins.finetune.objective import FineTuning
from seqlm.proteins.pretraining.objective import Pretraining
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training import trainer as trainer_module
from seqlm.training.checkpoint import Checkpointer
from seqlm.training.health.faults import NonFiniteLossError
from seqlm.training.kernels import GRAPH
from seqlm.training.processes import Processes, processes
from seqlm.training.step.gradients import FlatGradients
from seqlm.training.step.graph import RecordedPass
from seqlm.training.tracking.progress import Progress
from seqlm.training.trainer import Trainer
from tests.workloads.training.rehearsed_recording import (
    RecordedPretraining,
    recording_trainer,
    recordings,
)
from tests.workloads.training.training_runs import PACKS_PER_STEP

NUM_STEPS = 4
SAVED_STEP = 2


@pytest.fixture
def here() -> Iterator[Processes]:
    with processes() as here:
        yield here


@pytest.fixture
def config(run_file: Path) -> RunFile:
    return load_config(run_file, [])


def steps_made(trainer: Trainer, number: int) -> list[dict[str, Any]]:
    """Make steps with an evaluation behind the first one; return their results."""
    results: list[dict[str, Any]] = []
    for step in islice(trainer.steps(), number):
        trainer.step(step)
        result = trainer.settle()
        assert result is not None
        if not results:
            trainer.evaluate(trainer.objective.split, 1)
        results.append(asdict(result))
    return results


def weights_of(trainer: Trainer) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def are_equal(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_replayed_steps_are_those_that_are_launched(
    config: RunFile, here: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = Trainer(Pretraining(config), here)
    expected = steps_made(launched, NUM_STEPS)
    beats: list[str] = []
    trainer, recording = recording_trainer(config, here)
    monkeypatch.setattr(trainer_module, "beat", lambda doing, slow: beats.append(doing))
    assert steps_made(trainer, NUM_STEPS) == expected
    assert are_equal(weights_of(trainer), weights_of(launched))
    assert recording.num_replays == NUM_STEPS * PACKS_PER_STEP == len(beats)
    assert trainer.progress == launched.progress
    assert trainer.environment()["kernels"] == GRAPH


def test_a_recording_changes_neither_weights_nor_progress(config: RunFile, here: Processes) -> None:
    expected = weights_of(Trainer(Pretraining(config), here))
    trainer, recording = recording_trainer(config, here)
    assert are_equal(weights_of(trainer), expected)
    assert trainer.progress == Progress() and not trainer.has_stepped
    assert all(p.grad is None for p in trainer.model.parameters()), "a checkpoint is restored next"
    assert recording.num_replays == 0


def test_a_checkpoint_is_restored_into_what_is_recorded(
    config: RunFile, here: Processes, tmp_path: Path
) -> None:
    whole = Trainer(Pretraining(config), here)
    identity = whole.objective.identity(here)
    with Checkpointer(tmp_path, here, identity, 1) as checkpointer:
        steps_made(whole, SAVED_STEP)
        extra = {
            "progress": asdict(whole.progress),
            "config": {},
            "model_config": {},
            "environment": {},
        }
        checkpointer.save(SAVED_STEP, whole.model, whole.optimizers, extra)
        checkpointer.finish()
        resumed, _ = recording_trainer(config, here)
        saved = checkpointer.restore(resumed.model, resumed.optimizers)
    assert saved is not None
    resumed.progress = Progress(**saved["progress"])
    number = NUM_STEPS - SAVED_STEP
    assert steps_made(resumed, number) == steps_made(whole, number)
    assert are_equal(weights_of(resumed), weights_of(whole))


def test_a_replayed_step_that_is_not_finite_changes_nothing(
    config: RunFile, here: Processes
) -> None:
    trainer, _ = recording_trainer(config, here)
    steps_made(trainer, 2)
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(torch.nan)
    before = weights_of(trainer)
    steps = trainer.steps()
    trainer.step(next(steps))
    with pytest.raises(NonFiniteLossError, match="step 3: loss nan"):
        trainer.settle()
    after = weights_of(trainer)
    assert all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True)
    )


def test_the_rehearsal_notices_gradients_that_are_replaced(
    config: RunFile, here: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, _ = recording_trainer(config, here)

    def replaced(gradients: FlatGradients) -> None:
        for parameter in trainer.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    monkeypatch.setattr(FlatGradients, "begin", replaced)
    assert steps_made(trainer, 1)[0]["grad_norm"] == 0


def test_the_rehearsal_notices_a_pack_that_is_not_copied(
    config: RunFile, here: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = steps_made(Trainer(Pretraining(config), here), 1)
    trainer, _ = recording_trainer(config, here)
    monkeypatch.setattr(torch, "_foreach_copy_", lambda buffers, values: None)
    assert steps_made(trainer, 1)[0]["loss"] != expected[0]["loss"]


def test_a_pack_of_another_shape_is_refused(config: RunFile, here: Processes) -> None:
    objective = RecordedPretraining(config)
    shape = objective.pack_shape(objective.split)
    stream = objective.stream(objective.split, shape, 0)
    pack = objective.pack(stream.load(None), shape, here.device)
    factor = torch.ones(())
    objective.on_meta()
    with recordings(objective):
        recorded = RecordedPass(lambda pack, factor: factor, here.runtime.recorded, pack, factor)
    assert recorded(pack, torch.tensor(3.0)) == 3
    with pytest.raises(ValueError, match="a recorded pass needs"):
        recorded(dataclasses.replace(pack, rows=pack.rows[1:]), factor)
    longer = dataclasses.replace(pack.segments, max_length=shape.max_length + 1)
    with pytest.raises(ValueError, match="a recorded pass needs"):
        recorded(dataclasses.replace(pack, segments=longer), factor)


def test_a_released_trainer_keeps_no_recording(config: RunFile, here: Processes) -> None:
    trainer, recording = recording_trainer(config, here)
    steps_made(trainer, 1)
    kept = weakref.ref(recording)
    del recording
    trainer.release()
    gc.collect()
    assert kept() is None


def test_without_a_recording_the_passes_are_launched(
    config: RunFile, here: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = steps_made(Trainer(Pretraining(config), here), NUM_STEPS)
    trainer = Trainer(Pretraining(config), here, frozenset({GRAPH}))  # a CPU cannot record
    assert trainer.kernels == frozenset()
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1 and "kernel graph" in warnings[0] and "cpu" in warnings[0]
    assert steps_made(trainer, NUM_STEPS) == expected


def test_only_constant_passes_are_offered(
    config: RunFile, here: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[set[str]] = []

    def none_selected(mode: str, names: set[str], *_: Any) -> frozenset[str]:
        offered.append(names)
        return frozenset()

    monkeypatch.setattr(trainer_module, "selected", none_selected)
    Trainer(Pretraining(config), here)
    assert GRAPH in offered[0]
    assert not FineTuning.has_constant_passes and not CausalLM.has_constant_passes
