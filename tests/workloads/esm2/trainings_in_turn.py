"""Several runs one after another, each recorded, in processes forked from one: imports take 5 CPU seconds.

``python -m tests.workloads.esm2.trainings_in_turn RUN.yaml '{"2": ["name=a ...", "name=b ..."]}'``: the
runs of two processes, and so on.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from torch.multiprocessing.spawn import start_processes

from tests.workloads.esm2.training_runs import free_port
from workloads.esm2 import pretraining, train
from workloads.esm2.config import RunConfig, load_config
from workloads.esm2.masking import mask_pack
from workloads.esm2.processes import Processes, processes

with contextlib.suppress(ModuleNotFoundError):  # make test-oldest has none
    import mlflow  # noqa: F401  (which each process else imports, in a thread of its own)


def main(path: Path, runs: Sequence[str]) -> None:
    """Train in the processes that the environment describes; each run is given by its overrides."""
    with processes() as here:
        for overrides in runs:
            train_and_record(load_config(path, overrides.split()), here)


def train_and_record(config: RunConfig, here: Processes) -> None:
    """Train; ids and targets of every micro-batch go to ``<run>/packs-<rank>.jsonl``."""
    config.run_dir.mkdir(parents=True, exist_ok=True)
    with (config.run_dir / f"packs-{here.rank}.jsonl").open("a") as file:

        def recording_mask_pack(*arguments: Any) -> Any:
            pack = mask_pack(*arguments)
            file.write(json.dumps([pack.tokens.tolist(), pack.targets.tolist()]) + "\n")
            return pack

        with mock.patch.object(pretraining, "mask_pack", recording_mask_pack):
            train.train(train.objective_of(config), here)


def recorded_packs(run_dir: Path, processes: int, *, packs_per_step: int, num_steps: int) -> list[Any]:
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


def member(rank: int, environment: dict[str, str], path: Path, runs: Sequence[str]) -> None:
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    main(path, runs)


if __name__ == "__main__":
    for number, its_runs in json.loads(sys.argv[2]).items():
        torchrun = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": number}
        # Nothing has used a thread or a device here, so that forking is safe.
        start_processes(member, (torchrun, Path(sys.argv[1]), its_runs), int(number), start_method="fork")
