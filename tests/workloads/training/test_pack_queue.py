"""Order in which packs are read, masked and used."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.model.packed_model import Pack
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.proteins.pretraining.objective import Pretraining
from seqlm.runs.run_file import load_config
from seqlm.training.packing import HostPack, PackShape, PlannedPack, Position
from seqlm.training.processes import processes
from seqlm.training.records import RecordSplit
from seqlm.training.step.loader import READ_AHEAD_STEPS, StepPacks, Steps, read_ahead
from seqlm.training.step.pack_queue import PackQueue
from seqlm.training.step.staging import in_one_copy, staged
from seqlm.training.trainer import Trainer
from tests.workloads.training.training_runs import PACKS_PER_STEP

SECONDS = 30.0
"""Longest wait for another thread."""


@pytest.fixture
def split(prepared: Path) -> RecordSplit:
    return RecordSplit(prepared, "train")


class GatedStream(ProteinStream):
    """Packs that are read only as far as the test lets them."""

    def __init__(self, split: RecordSplit, num_allowed: int = 1_000_000) -> None:
        super().__init__(split, PackShape.of(split, 256, 126), seed=0)
        self.num_read = 0
        self._changed = threading.Condition()
        self._num_allowed = num_allowed

    def load(self, pack: PlannedPack | None) -> HostPack:
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_read < self._num_allowed, SECONDS)
            self.num_read += 1
            self._changed.notify_all()
        return super().load(pack)

    def allow(self, number: int) -> None:
        with self._changed:
            self._num_allowed = number
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        """Wait until so many packs are read."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.num_read >= number, SECONDS)


def steps_of(stream: ProteinStream, packs_per_step: int = PACKS_PER_STEP) -> Steps:
    return Steps(stream, Position(), packs_per_step, rank=0, world_size=1)


def test_the_reader_replaces_each_pack_that_is_used(split: RecordSplit) -> None:
    stream = GatedStream(split)
    most = (1 + READ_AHEAD_STEPS) * PACKS_PER_STEP
    with closing(read_ahead(steps_of(stream))) as steps:
        step = next(steps)
        for num_passed in range(PACKS_PER_STEP):
            stream.wait_for(most + num_passed)
            assert stream.num_read == most + num_passed
            step.passed()
        following = next(steps)
        assert following is step.following
        stream.wait_for(most + PACKS_PER_STEP)
        step.passed()  # of a step that is over
        assert stream.num_read == most + PACKS_PER_STEP


def test_steps_are_the_same_with_and_without_read_ahead(split: RecordSplit) -> None:
    plain = list(islice(steps_of(GatedStream(split)), 6))
    with closing(read_ahead(steps_of(GatedStream(split)))) as steps:
        ahead = list(islice(steps, 6))
    for expected, found in zip(plain, ahead, strict=True):
        assert len(found.packs) == PACKS_PER_STEP and found.after == expected.after
        assert found.num_record_tokens == expected.num_record_tokens
        for a, b in zip(expected.packs, found.packs, strict=True):
            assert isinstance(a, HostPack) and isinstance(b, HostPack)
            assert np.array_equal(a.tokens, b.tokens) and np.array_equal(a.keys, b.keys)


def test_read_ahead_raises_the_readers_error(split: RecordSplit) -> None:
    class Failing(GatedStream):
        def load(self, pack: PlannedPack | None) -> HostPack:
            if self.num_read == PACKS_PER_STEP:
                raise OSError("disk gone")
            return super().load(pack)

    with closing(read_ahead(steps_of(Failing(split)))) as steps:
        assert len(next(steps).packs) == PACKS_PER_STEP
        with pytest.raises(OSError, match="disk gone"):
            next(steps)


def test_read_ahead_ends_its_thread_when_it_is_closed(split: RecordSplit) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "read-ahead"]

    before = threads()
    steps = read_ahead(steps_of(GatedStream(split)))
    next(steps)
    assert len(threads()) == len(before) + 1
    steps.close()
    assert threads() == before


class Queue:
    """Queue of packs that are numbers, and the order in which they were masked."""

    def __init__(self) -> None:
        self.masked: list[Any] = []
        self.queue = PackQueue(self._mask, lambda pack: torch.tensor(pack))

    def _mask(self, host: Any) -> Any:
        self.masked.append(host)
        return host


def step_with(packs: list[Any], following: StepPacks | None = None) -> StepPacks:
    return StepPacks(packs, 0, 0, 0, 0, Position(), following)


def test_a_pack_of_the_next_step_is_masked_after_each_pass() -> None:
    tested = Queue()
    queue = tested.queue
    second = step_with([10, 20])
    first = step_with([1, 2], second)
    assert queue.begin(first).item() == 3
    assert tested.masked == [1, 2]
    assert queue.take() == 1
    queue.mask_ahead(1)
    assert tested.masked == [1, 2, 10]
    assert queue.take() == 2
    queue.mask_ahead(2)
    assert tested.masked == [1, 2, 10, 20]
    assert queue.begin(second).item() == 30
    assert [queue.take(), queue.take()] == [10, 20] and len(tested.masked) == 4


def test_packs_that_are_not_read_yet_are_masked_when_their_step_begins() -> None:
    tested = Queue()
    queue = tested.queue
    read: list[Any] = []
    second = step_with(read)
    first = step_with([1, 2, 3], second)
    queue.begin(first)
    queue.mask_ahead(1)  # nothing is read
    assert tested.masked == [1, 2, 3]
    read.append(10)
    read.append(20)
    queue.mask_ahead(2)
    queue.mask_ahead(3)  # the last one is not read
    assert tested.masked == [1, 2, 3, 10, 20]
    read.append(30)
    assert queue.begin(second).item() == 60
    assert tested.masked == [1, 2, 3, 10, 20, 30]
    assert [queue.take() for _ in range(3)] == [10, 20, 30]


def test_another_step_than_the_next_one_is_masked_itself() -> None:
    tested = Queue()
    queue = tested.queue
    queue.begin(step_with([1], step_with([10])))
    queue.mask_ahead(1)
    assert queue.begin(step_with([5])).item() == 5
    assert queue.take() == 5


@pytest.fixture
def trainer(run_file: Path) -> Iterator[Trainer]:
    with processes() as here:
        config = load_config(run_file, ["train.max_steps=3", "optim.warmup_steps=1"])
        yield Trainer(Pretraining(config), here)


def test_masks_and_passes_take_turns(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step masks its packs at its beginning, and the last one none for a step behind it."""
    order: list[str] = []
    pack = Pretraining.pack
    loss_sum = Pretraining.loss_sum
    alive: weakref.WeakSet[Pack] = weakref.WeakSet()
    most_alive = 0

    def masked(*arguments: Any) -> Pack:
        nonlocal most_alive
        order.append("mask")
        found = pack(*arguments)
        alive.add(found)
        most_alive = max(most_alive, len(alive))
        return found

    def passed(objective: Pretraining, model: nn.Module, pack: Any) -> Tensor:
        order.append("pass")
        return loss_sum(objective, model, pack)

    monkeypatch.setattr(Pack, "__hash__", object.__hash__)
    monkeypatch.setattr(Pack, "__eq__", object.__eq__)
    monkeypatch.setattr(Pretraining, "pack", masked)
    monkeypatch.setattr(Pretraining, "loss_sum", passed)
    gc.disable()  # packs are freed as soon as nothing uses them
    try:
        for step in list(islice(trainer.steps(), 4))[:3]:
            trainer.step(step)
    finally:
        gc.enable()
    beginning = ["mask"] * PACKS_PER_STEP
    assert order == beginning + 2 * PACKS_PER_STEP * ["pass", "mask"] + PACKS_PER_STEP * ["pass"]
    assert most_alive == PACKS_PER_STEP
    assert len(alive) == 0


def test_results_do_not_depend_on_when_packs_are_masked(run_file: Path) -> None:
    """Steps read whole, as their packs come, and none before the step begins; an evaluation in between."""
    weights: list[list[Tensor]] = []
    for kind in ("linked", "alone", "ahead"):
        with processes() as here:
            trainer = Trainer(Pretraining(load_config(run_file, [])), here)
            all_steps = trainer.steps()
            if kind == "linked":
                steps: Iterator[StepPacks] = iter(list(islice(all_steps, 5)))
            else:
                steps = read_ahead(all_steps) if kind == "ahead" else all_steps
            for number, step in enumerate(islice(steps, 5)):
                if kind == "alone":
                    assert step.following is None
                trainer.step(step)
                if number == 2:
                    trainer.evaluate(trainer.objective.split, 1)
            trainer.settle()
            assert trainer.progress.step == 5
            weights.append([p.detach().clone() for p in trainer.model.parameters()])
            if kind == "ahead":
                steps.close()  # type: ignore[attr-defined]
    for other in weights[1:]:
        assert all(torch.equal(a, b) for a, b in zip(weights[0], other, strict=True))


def test_a_step_does_not_wait_for_the_reader(
    run_file: Path, split: RecordSplit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own packs and one of the next step are read. The others come after it."""
    num_first = PACKS_PER_STEP + 1
    with processes() as here:
        trainer = Trainer(Pretraining(load_config(run_file, [])), here)
        stream = GatedStream(split, num_allowed=num_first)
        with closing(read_ahead(steps_of(stream))) as steps:
            step = next(steps)
            stream.wait_for(num_first)
            masked: list[Any] = []
            pack = Pretraining.pack

            def noted(*arguments: Any) -> Pack:
                masked.append(arguments)
                return pack(*arguments)

            monkeypatch.setattr(Pretraining, "pack", noted)
            trainer.step(step)
            assert stream.num_read == num_first
            assert PACKS_PER_STEP <= len(masked) <= num_first
            stream.allow(100)
            trainer.step(next(steps))
            trainer.settle()
    assert trainer.progress.step == 2


def test_a_pack_is_copied_as_one_buffer(split: RecordSplit) -> None:
    stream = GatedStream(split)
    host = stream.load(next(stream.epoch(0)))
    arrays = {**vars(host), "labels": np.array([[1.5, np.nan, -2.0]], dtype=np.float32)}
    buffer, tensors = in_one_copy(arrays, torch.device("cpu"), pins=False)
    assert tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        expected = torch.from_numpy(array)
        assert tensors[name].dtype == expected.dtype
        assert np.array_equal(tensors[name].numpy(), array, equal_nan=array.dtype.kind == "f")
        assert tensors[name].untyped_storage().data_ptr() == buffer.data_ptr()


def test_a_staged_pack_is_masked_like_one_on_the_host(split: RecordSplit) -> None:
    stream = GatedStream(split)
    host = stream.load(next(stream.epoch(0)))
    cpu = torch.device("cpu")
    expected = mask_pack(host, 128, 0.15, cpu)
    found = mask_pack(staged(host, cpu), 128, 0.15, cpu)
    for name in ("tokens", "token_scale", "positions", "rows", "targets"):
        assert torch.equal(getattr(found, name), getattr(expected, name))
