"""Runs of two processes, one of which sleeps in each layer. Three minutes pass in a few logged steps."""

from __future__ import annotations

import os
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from seqlm.proteins.model.packed_layer import PackedLayer
from seqlm.runs.run_file import load_config
from seqlm.training import train
from seqlm.training.health import pass_times
from seqlm.training.kernels import PRODUCTS
from seqlm.training.processes import processes
from seqlm.training.trainer import Trainer
from tests.workloads.training.kept_gradient_runs import PlainPretraining

SECONDS_PER_LOGGED_STEP = 60.0
SLOW_RANK = 1
SLEEP_SECONDS = 0.1
NUM_STEPS = 8
KINDS = {
    "ddp": ("parallel.mode=ddp", frozenset[str]()),
    "kept": ("parallel.mode=ddp", frozenset({PRODUCTS})),
    "fsdp": ("parallel.mode=fsdp", frozenset[str]()),
}
"""Settings and kernels of runs in which different parts of a pass are measured."""


class _Sleeper:
    """Sleep that adds up."""

    def __init__(self) -> None:
        self.slept_seconds = 0.0

    def sleep(self) -> None:
        time.sleep(SLEEP_SECONDS)
        self.slept_seconds += SLEEP_SECONDS


class _FastClock:
    """Module ``time`` for one run. Other work on this computer does not make a process look slow."""

    def __init__(self, sleeper: _Sleeper) -> None:
        self._calls = count()
        self._sleeper = sleeper

    def perf_counter(self) -> float:
        """Return the processor time of this process and the time it slept."""
        return time.process_time() + self._sleeper.slept_seconds

    def monotonic(self) -> float:
        """Return a time that advances with each call alone."""
        return next(self._calls) * SECONDS_PER_LOGGED_STEP


def train_with_a_sleeper(run_file: Path, settings: str) -> None:
    """Train a run of each kind; their folders have the names of the kinds."""
    forward = PackedLayer.forward
    sleeper = _Sleeper()

    def slow_forward(layer: PackedLayer, *arguments: Any) -> Any:
        if torch.is_grad_enabled():  # no evaluation
            sleeper.sleep()
        return forward(layer, *arguments)

    with processes() as here:
        os.environ["SLURMD_NODENAME"] = f"node-{here.rank}"
        if here.rank == SLOW_RANK:
            PackedLayer.forward = slow_forward  # type: ignore[method-assign, assignment]
        for kind, (mode, kernels) in KINDS.items():
            overrides = [f"name={kind}", mode, f"train.max_steps={NUM_STEPS}", *settings.split()]
            with (
                mock.patch.object(pass_times, "time", _FastClock(sleeper)),
                mock.patch.object(train, "Trainer", partial(Trainer, kernels=kernels)),
                mock.patch.object(train, "_finish", lambda *_: {}),  # the model is not needed
            ):
                train.train(PlainPretraining(load_config(run_file, overrides)), here)
