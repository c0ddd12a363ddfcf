"""Several runs one after another in the same processes, each recorded: interpreters take seconds to start.

``torchrun -m tests.workloads.esm2.trainings_in_turn RUN.yaml "name=a ..." "name=b ..."``, an argument a run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from workloads.esm2 import pretraining, train
from workloads.esm2.config import RunConfig, load_config
from workloads.esm2.masking import mask_pack
from workloads.esm2.processes import Processes, processes


def main(path: Path, runs: Sequence[str]) -> None:
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
