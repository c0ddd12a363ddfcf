"""Training on CUDA: waits of the host, recompilation, memory, resuming, losses that are not finite."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.utils import counters

from seqlm.training.checkpoint import Checkpointer
from seqlm.training.health.faults import NonFiniteLossError
from seqlm.training.parallel import bare
from seqlm.training.processes import Processes, processes
from seqlm.training.tracking.progress import Progress
from seqlm.training.trainer import Trainer
from tests.gpu.conftest import Within
from tests.gpu.drawn import DrawnPretraining, Scale

SYNCS_PER_STEP = 1
"""The host reads the loss of a step, at whatever time. With four micro-batches a step, one wait in each would
be four more."""
FLAT_BYTES = 1 << 20
"""Shapes are constant, so a leak is a tensor of a micro-batch, a step or a parameter. All but single numbers
are larger, and 1 MiB holds 2,048 of those: the allocator gives each 512 bytes."""
FLOOR = 1e-4
"""Difference that is always allowed."""
RESUMED = 3.0
"""flash's backward adds up in any order, and Adam's first updates are as large for a small gradient as for a
large one, so two equal runs drift apart. How far is measured once, and a resumed run may drift three times as
far. The floor is above fp32's rounding, for the case that the two equal runs happen not to differ."""


@pytest.fixture
def here() -> Iterator[Processes]:
    try:
        with processes() as here:
            yield here
    finally:
        if dist.is_initialized():  # left behind by an error
            dist.destroy_process_group()


@contextmanager
def waits_of_the_host(device: torch.device) -> Iterator[list[str]]:
    """Warnings of CUDA's sync debug mode; none on a CPU, which has no such mode."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    found += [
        f"{warning.filename}:{warning.lineno}"
        for warning in caught
        if "synchronizing CUDA operation" in str(warning.message)
    ]


def compiled_graphs() -> int:
    return counters["stats"]["unique_graphs"]


def allocated_bytes(device: torch.device) -> int:
    """Bytes of live tensors on a GPU; 0 on a CPU, whose allocator does not count them."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated(device)


def test_steps_neither_wait_nor_compile_nor_grow(
    here: Processes, scale: Scale, within: Within, record_property: Callable[[str, object], None]
) -> None:
    """The first steps compile the layers, with gradients and without, and create the optimizer's state."""
    counters.clear()
    trainer = Trainer(DrawnPretraining(scale, compile=True), here)
    steps = trainer.steps()
    for _ in range(2):
        trainer.step(next(steps))
    trainer.evaluate(trainer.objective.split, 1)
    graphs = compiled_graphs()
    assert graphs > 0
    ready = [next(steps) for _ in range(scale.steps)]
    # The packs of these steps are on the device already.
    before = allocated_bytes(here.device)
    with waits_of_the_host(here.device) as waits:
        for step in ready:
            trainer.step(step)
    record_property("where the host waits", ", ".join(sorted(set(waits))))
    within("waits per step", len(waits) / scale.steps, SYNCS_PER_STEP)
    within("bytes more", allocated_bytes(here.device) - before, FLAT_BYTES)
    trainer.evaluate(trainer.objective.split, 1)
    within("graphs more", compiled_graphs() - graphs, 0)


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    """Copies of parameters, moments and counts of steps."""
    state = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for number, optimizer in enumerate(trainer.optimizers):
        for place, values in optimizer.state_dict()["state"].items():
            state |= {
                f"optimizer {number}, {place}, {name}": value.detach().clone()
                for name, value in values.items()
                if isinstance(value, Tensor)
            }
    return state


def settle(trainer: Trainer) -> None:
    """Wait for the last step, if steps are launched ahead."""
    getattr(trainer, "settle", lambda: None)()


def test_a_resumed_run_is_the_same_run(
    here: Processes, scale: Scale, tmp_path: Path, within: Within
) -> None:
    """Not bit by bit on CUDA, where the same run twice is not either."""

    def new_trainer() -> Trainer:
        return Trainer(DrawnPretraining(scale, compile=False), here)

    def trained(trainer: Trainer, num_steps: int) -> Tensor:
        steps = trainer.steps()
        for _ in range(num_steps):
            trainer.step(next(steps))
        settle(trainer)
        return torch.cat([p.detach().flatten().double() for p in bare(trainer.model).parameters()])

    trainer = new_trainer()
    identity = trainer.objective.identity(here)
    start = trained(trainer, 0)
    with Checkpointer(tmp_path, here, identity, 1) as checkpointer:
        trained(trainer, 4)
        extra = {
            "progress": asdict(trainer.progress),
            "config": {},
            "model_config": {},
            "environment": {},
        }
        checkpointer.save(4, trainer.model, trainer.optimizers, extra)
        checkpointer.finish()
        whole = trained(trainer, 4)
        again = trained(new_trainer(), 8)
        resumed = new_trainer()
        saved = checkpointer.restore(resumed.model, resumed.optimizers)
        assert saved is not None
        resumed.progress = Progress(**saved["progress"])
        assert resumed.progress.step == 4
    found = trained(resumed, 4)
    moved = (whole - start).norm()
    drift, tolerance = ((x - whole).norm() / moved for x in (found, again))
    within("drift over the run's update", drift.item(), RESUMED * tolerance.item() + FLOOR)


def test_a_step_that_is_not_finite_changes_nothing(here: Processes, scale: Scale) -> None:
    objective = DrawnPretraining(scale, compile=False)
    trainer = Trainer(objective, here)
    steps = trainer.steps()
    for _ in range(2):
        trainer.step(next(steps))
    settle(trainer)
    objective.fails = True
    before = state_of(trainer)
    assert len(before) > 2 * len(list(trainer.model.parameters()))
    with pytest.raises(NonFiniteLossError, match="step 3: loss nan"):
        for _ in range(2):  # the flag may be read when the next step is launched
            trainer.step(next(steps))
    after = state_of(trainer)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
