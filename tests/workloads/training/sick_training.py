"""Runs in several processes, some of which compute a gradient that is not finite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from seqlm.proteins.pretraining.objective import Pretraining
from seqlm.runs.run_file import load_config
from seqlm.training.kernels import PRODUCTS
from seqlm.training.processes import processes
from seqlm.training.trainer import Trainer
from tests.workloads.training.kept_gradient_runs import PlainPretraining, weights_of

SPOILT_PASS = 2
"""Pass of the second step that is spoilt, which is its last one on each process."""


@dataclass(frozen=True)
class Sickness:
    """Spoilt gradients of a run."""

    ranks: tuple[int, ...]
    """Processes with a spoilt gradient."""
    again: bool
    """Whether a repetition of the same pack is spoilt, too."""
    mode: str = "ddp"
    keeps_gradients: bool = False


SICK_RUNS = {
    "once": Sickness((1,), again=False),
    "once-kept": Sickness((1,), again=False, keeps_gradients=True),
    "once-fsdp": Sickness((1,), again=False, mode="fsdp"),
    "one": Sickness((1,), again=True),
    "one-fsdp": Sickness((1,), again=True, mode="fsdp"),
    "all": Sickness((0, 1), again=True),
}


class _Spoilt(torch.autograd.Function):
    """Number whose gradient is NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * float("nan")


@contextmanager
def spoilt(sickness: Sickness, rank: int) -> Iterator[None]:
    """Spoil the gradient of a pack on this process."""
    plain = Pretraining.loss_sum
    passes = 0
    tokens: Tensor | None = None

    def loss_sum(objective: Pretraining, model: nn.Module, pack: Any) -> Tensor:
        nonlocal passes, tokens
        passes += 1
        is_first = passes == SPOILT_PASS
        if is_first:
            tokens = pack.tokens.clone()
        is_again = tokens is not None and torch.equal(tokens, pack.tokens)
        found: Tensor = plain(objective, model, pack)
        if rank in sickness.ranks and (is_first or (is_again and sickness.again)):
            found = _Spoilt.apply(found)
        return found

    with mock.patch.object(Pretraining, "loss_sum", loss_sum):
        yield


def train_sick_runs(run_file: Path, to: Path) -> None:
    """Write the error of each run in ``SICK_RUNS`` on each process to ``<to>/<name>-<rank>.json``."""
    with processes() as here:
        for name, sickness in SICK_RUNS.items():
            config = load_config(run_file, [f"parallel.mode={sickness.mode}"])
            kernels = frozenset({PRODUCTS}) if sickness.keeps_gradients else frozenset[str]()
            trainer = Trainer(PlainPretraining(config), here, kernels)
            steps = list(islice(trainer.steps(), 3))
            trainer.step(steps[0])
            trainer.settle()
            before = weights_of(trainer)
            found: dict[str, object] = {}
            with spoilt(sickness, here.rank):
                try:
                    trainer.step(steps[1])
                    trainer.step(steps[2])
                except RuntimeError as error:
                    found = {"type": type(error).__name__, "text": str(error)}
            after = weights_of(trainer)
            found["is_unchanged"] = all(torch.equal(before[key], after[key]) for key in before)
            (to / f"{name}-{here.rank}.json").write_text(json.dumps(found))
