"""Runs for tests: their file, real training processes, and what they leave in their log."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

import torch
import yaml
from matplotlib.figure import Figure

from seqlm.commands.train import train as main
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.objective import Objective
from seqlm.training.processes import processes
from seqlm.training.report import run_report
from seqlm.training.tracking.run_log import read_metrics
from seqlm.training.trainer import Trainer

REPOSITORY = Path(__file__).parents[3]
NUM_STEPS = 16
PACKS_PER_STEP = 4

Losses = dict[int, float]


def write_run_file(folder: Path, data: Path, model: Path) -> Path:
    """A run of 16 fp32 steps of 4 packs, one line of the log a step; all it writes is in the folder."""
    settings = {
        "name": "run",
        "runs": str(folder / "runs"),
        "model": {"init_from": str(model), "max_residues": 126},
        "data": {"path": str(data)},
        "optim": {"lr": 2e-3, "warmup_steps": 3},
        "train": {
            "max_steps": NUM_STEPS,
            "tokens_per_pack": 256,
            "tokens_per_step": PACKS_PER_STEP * 256,
            "precision": "fp32",
            "log_every_steps": 1,
            "eval_every_steps": 1000,
            "save_every_steps": 1000,
        },
        "tracking": {"mlflow": False},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def train_here(run_file: Path, *overrides: str, stage: Callable[[RunFile], None] = main) -> None:
    """Train as a run of one process, this one: a fresh interpreter takes seconds to start."""
    with figures_not_drawn():
        stage(load_config(run_file, overrides))


@contextmanager
def figures_not_drawn() -> Iterator[None]:
    """Leave the figures of reports empty: they take a second, and tests of reports draw them."""

    def save(figure: Figure, target: TextIO, **_: Any) -> None:
        target.write("<svg></svg>")

    with mock.patch.object(Figure, "savefig", save), curves_not_drawn():
        yield


@contextmanager
def curves_not_drawn() -> Iterator[None]:
    """Leave those figures empty that every report has."""

    def empty(*_: Any, **__: Any) -> str:
        return "<svg></svg>"

    with mock.patch.multiple(
        run_report, loss_figure=empty, curve_figure=empty, length_figure=empty
    ):
        yield


def changed_parameters(objective: Objective) -> set[str]:
    """Names of those that three steps change."""
    with processes() as here:
        trainer = Trainer(objective, here)
        before = {name: value.clone() for name, value in trainer.model.named_parameters()}
        steps = trainer.steps()
        for _ in range(
            3
        ):  # adapters' first matrices have no gradient as long as the second ones are 0
            trainer.step(next(steps))
        return {
            name
            for name, value in trainer.model.named_parameters()
            if not torch.equal(value, before[name])
        }


def start_training(
    *arguments: str,
    processes: int,
    program: Sequence[str] = ("seqlm", "train"),
    **environment: str,
) -> subprocess.Popen[str]:
    """Start ``torchrun -m seqlm train`` (or another module) as a user's shell would.

    Args:
        arguments: arguments of the module.
        processes: number of processes that torchrun starts.
        program: module that they run, and its first arguments.
        environment: variables that are set besides those of this process.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", "-m", *program, *arguments]
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def losses(run_dir: Path) -> Losses:
    steps = [(line["step"], line["loss"]) for line in lines(run_dir, "train")]
    assert len(dict(steps)) == len(steps), "a step is logged twice"
    return dict(steps)


def events(run_dir: Path) -> list[str]:
    return [line["event"] for line in lines(run_dir, "event")]


def lines(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in read_metrics(run_dir / "metrics.jsonl") if line["kind"] == kind]


def largest_difference(a: Losses, b: Losses) -> float:
    assert a.keys() == b.keys() and len(a) >= NUM_STEPS
    return max(abs(a[step] - b[step]) for step in a)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
