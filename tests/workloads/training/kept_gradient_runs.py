"""Runs in several processes whose gradients are freed in each step (DDP), or keep their places in memory."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from seqlm.proteins.pretraining.objective import Pretraining
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.checkpoint import Checkpointer
from seqlm.training.kernels import GRAPH, PRODUCTS
from seqlm.training.processes import Processes, processes
from seqlm.training.tracking.progress import Progress
from seqlm.training.trainer import StepResult, Trainer
from tests.workloads.training.rehearsed_recording import (
    RecordedPretraining,
    recording_trainer,
    recordings,
)

KINDS = {"ddp": frozenset[str](), "kept": frozenset({PRODUCTS})}
"""Kernels of the two kinds of runs."""
OPTIMIZERS = ("adamw", "muon")
NUM_STEPS = 4
SAVED_STEP = 2


class PlainPretraining(Pretraining):
    """Pre-training whose model computes the same with any kernels, so that only gradients' places differ."""

    def on_meta(self) -> Any:
        model: Any = super().on_meta()
        model.kernel_problems = lambda names, pack: {}
        model.select_kernels = lambda names, dtype: None
        model.weights_changed = lambda: None
        return model


def new_trainer(config: RunFile, here: Processes, kind: str) -> Trainer:
    trainer = Trainer(PlainPretraining(config), here, KINDS[kind])
    assert isinstance(trainer.model, DistributedDataParallel) == (kind == "ddp")
    return trainer


def steps_made(trainer: Trainer, number: int) -> list[StepResult]:
    """Make steps, and return their losses and gradient norms."""
    results = []
    for step in islice(trainer.steps(), number):
        trainer.step(step)
        result = trainer.settle()
        assert result is not None
        results.append(result)
    return results


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {
        name.removeprefix("module."): value.detach().clone()
        for name, value in trainer.model.named_parameters()
    }


def train_in_both_ways(config: RunFile, here: Processes, to: Path) -> None:
    """Write results and weights of a whole run of each kind to ``<to>/<kind>-<rank>.pt``."""
    to.mkdir(exist_ok=True)
    for kind in KINDS:
        trainer = new_trainer(config, here, kind)
        results = [asdict(result) for result in steps_made(trainer, NUM_STEPS)]
        torch.save((results, weights_of(trainer)), to / f"{kind}-{here.rank}.pt")


def resume_in_the_other_way(config: RunFile, here: Processes, to: Path) -> None:
    """Begin a run of each kind, and continue it as one of the other kind from its checkpoint."""
    for kind, other in (("ddp", "kept"), ("kept", "ddp")):
        trainer = new_trainer(config, here, kind)
        identity = trainer.objective.identity(here)
        steps_made(trainer, SAVED_STEP)
        with Checkpointer(to / kind, here, identity, 1) as checkpointer:
            extra = {
                "progress": asdict(trainer.progress),
                "config": {},
                "model_config": {},
                "environment": {},
            }
            checkpointer.save(SAVED_STEP, trainer.model, trainer.optimizers, extra)
            checkpointer.finish()
            resumed = new_trainer(config, here, other)
            saved = checkpointer.restore(resumed.model, resumed.optimizers)
        assert saved is not None
        resumed.progress = Progress(**saved["progress"])
        steps_made(resumed, NUM_STEPS - SAVED_STEP)
        torch.save(weights_of(resumed), to / f"{kind}-{other}-{here.rank}.pt")


def record_on_some_processes(config: RunFile, here: Processes, to: Path) -> None:
    """Write the kernels of a run that all processes can record, and of one that the second cannot."""
    trainer, _ = recording_trainer(config, here)
    steps_made(trainer, 1)
    objective = RecordedPretraining(config)
    with recordings(objective) if here.is_first else nullcontext():
        without = Trainer(objective, here, frozenset({GRAPH}))
    steps_made(without, 1)
    torch.save([trainer.kernels, without.kernels], to / f"recorded-{here.rank}.pt")


def train_in_two_processes(run_file: Path, to: Path) -> None:
    """Write what the tests of two processes compare, each kind of run below a folder of its own."""
    with processes() as here:
        for optimizer in OPTIMIZERS:
            config = load_config(run_file, [f"optim.name={optimizer}"])
            train_in_both_ways(config, here, to / optimizer)
        config = load_config(run_file, [])
        resume_in_the_other_way(config, here, to)
        record_on_some_processes(config, here, to)
        sharded = Trainer(
            PlainPretraining(load_config(run_file, ["parallel.mode=fsdp"])), here, KINDS["kept"]
        )
        steps_made(sharded, 1)
        torch.save(sharded.kernels, to / f"fsdp-{here.rank}.pt")


def train_in_three_processes(run_file: Path, to: Path) -> None:
    with processes() as here:
        train_in_both_ways(load_config(run_file, []), here, to)
