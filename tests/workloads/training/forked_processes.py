"""Processes of a run, forked from a server that has imported everything: imports take 5 CPU seconds.

They are what torchrun would have started. Tests of torchrun itself start it (``start_training``).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from seqlm.commands import kinds
from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.pretraining import objective as pretraining
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training import train
from seqlm.training.processes import Processes, processes
from tests.workloads.training.training_runs import REPOSITORY, free_port

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Forked:
    """The processes of a run, and the file of what they print."""

    processes: Sequence[ForkServerProcess]
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text()

    def are_running(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(30)

    def ends(self, seconds: float = 400) -> list[int]:
        """Exit statuses of all. After the first failure the others are given 10 seconds."""
        deadline = time.monotonic() + seconds
        while any(process.is_alive() for process in self.processes):
            assert time.monotonic() < deadline, self.output
            if any(process.exitcode for process in self.processes):
                for process in self.processes:
                    process.join(10)
                self.kill()
            time.sleep(0.02)
        return [process.exitcode or 0 for process in self.processes]


@contextmanager
def forked(
    number: int, target: Callable[..., None], *arguments: Any, log: Path, **environment: str
) -> Iterator[Forked]:
    """Start processes that call ``target(*arguments)`` in torchrun's environment; end those that are left."""
    with mock.patch.dict(
        os.environ, PYTHONPATH=f"{REPOSITORY}/workloads:{REPOSITORY}"
    ):  # whatever folder the first test is in
        forkserver.ensure_running()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(number)}
    place = {**os.environ, **place, **environment}
    started = Forked(
        [
            _CONTEXT.Process(
                target=_run,
                args=(log, place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, target, arguments),
            )
            for rank in range(number)
        ],
        log,
    )
    for process in started.processes:
        process.start()
    try:
        yield started
    finally:
        started.kill()


def _run(
    log: Path, environment: dict[str, str], target: Callable[..., None], arguments: Sequence[Any]
) -> None:
    torch.set_num_threads(1)
    os.environ.clear()
    os.environ.update(environment)
    with log.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    target(*arguments)


def train_in_turn(run_file: Path, runs: dict[int, list[str]]) -> None:
    """Train several runs to their ends; each is given by its overrides, below its number of processes."""
    for number, its_runs in runs.items():
        log = run_file.parent / f"processes-{number}.log"
        with forked(number, train_and_record_all, run_file, its_runs, log=log) as started:
            assert started.ends() == [0] * number, started.output


def train_and_record_all(path: Path, runs: Sequence[str]) -> None:
    """Train in the processes that the environment describes; each run is given by its overrides."""
    with processes() as here:
        for overrides in runs:
            _train_and_record(load_config(path, overrides.split()), here)


def _train_and_record(config: RunFile, here: Processes) -> None:
    """Train; ids and targets of every micro-batch go to ``<run>/packs-<rank>.jsonl``."""
    config.run_dir.mkdir(parents=True, exist_ok=True)
    with (config.run_dir / f"packs-{here.rank}.jsonl").open("a") as file:

        def recording_mask_pack(*arguments: Any) -> Any:
            pack = mask_pack(*arguments)
            file.write(json.dumps([pack.tokens.tolist(), pack.targets.tolist()]) + "\n")
            return pack

        with mock.patch.object(pretraining, "mask_pack", recording_mask_pack):
            train.train(kinds.kind_of(config).objective(config), here)


def recorded_packs(
    run_dir: Path, processes: int, *, packs_per_step: int, num_steps: int
) -> list[Any]:
    """Ids and targets of every pack, put into the plan's order from what each process recorded."""
    ranks = [
        [json.loads(line) for line in (run_dir / f"packs-{rank}.jsonl").read_text().splitlines()]
        for rank in range(processes)
    ]
    rounds = -(-packs_per_step // processes)
    return [
        ranks[index % processes][step * rounds + index // processes]
        for step in range(num_steps)
        for index in range(packs_per_step)
    ]
