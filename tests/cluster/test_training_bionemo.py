"""The stage train-bionemo on Slurm, with entry points that stand in for BioNeMo's: no step is a training."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.patience import wait_until
from tests.cluster.training import GID, HOME, PYTHON, UID, USER, log_of, nodes_of, submit, wait_for_end
from tests.workloads.esm2.bionemo.stand_in_bionemo import STEP_SECONDS, make_packages
from tests.workloads.esm2.training_runs import events, lines
from workloads.esm2.bionemo.checkpoints import checkpoint_step

PROCESS = "workloads.esm2.bionemo.train --config"
RUN = (
    *(
        "model.init_from=null",
        "train.max_steps=80",
        "train.precision=bf16",
        f"--python={HOME}/bionemo-python",
    ),
    "bionemo.dataset_workers=1",
)
SAVE_EVERY = 10


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, home: Path) -> dict[str, dict[str, str]]:
    make_packages(home / "packages")
    python = home / "bionemo-python"
    settings = f'PYTHONPATH="$PYTHONPATH:{HOME}/packages" {STEP_SECONDS}=0.4 OMP'
    python.write_text(PYTHON.replace("OMP", settings, 1))
    python.chmod(0o755)
    for path in (python, home / "packages", *(home / "packages").rglob("*")):
        os.chown(path, UID, GID)
    shutil.rmtree(home / "data-bionemo", ignore_errors=True)
    made = {"killed": submit(cluster, "name=killed", *RUN, stage="train-bionemo")}
    return made | {"limited": submit(cluster, "name=limited-b", *RUN, stage="train-bionemo", nodes="1")}


def test_a_killed_run_goes_on_from_bionemos_checkpoint(
    cluster: Cluster, home: Path, jobs: dict[str, dict[str, str]]
) -> None:
    job, run_dir = jobs["killed"], home / "runs/killed"
    wait_until(lambda: checkpoint_step(run_dir) >= SAVE_EVERY - 1, "a checkpoint", seconds=300)
    nodes = nodes_of(cluster, job["job"])
    nodes[-1].run(["pkill", "--signal=KILL", "--newest", "--full", PROCESS])
    found = wait_for_end(cluster, job["job"], log_of(cluster, job))
    assert found["Restarts"] == "0"
    said = log_of(cluster, job).read_text()
    assert re.search(rf"crash 1 of 3 since step \d+: {nodes[-1].hostname}, process 1: status 137\n", said), (
        said
    )
    assert said.count("train_esm2 --num-nodes=2 --num-gpus=1 ") == 2 and "--resume-if-exists" in said
    results = json.loads((run_dir / "all_results.json").read_text())
    assert results["steps"] == 80 and results["world_size"] == 2
    steps = [line["step"] for line in lines(run_dir, "train")]
    assert "resumed" in events(run_dir) and steps == list(range(1, 81)), "each step once"


def test_at_the_time_limit_it_saves_and_goes_on(
    cluster: Cluster, home: Path, jobs: dict[str, dict[str, str]]
) -> None:
    job, run_dir = jobs["limited"], home / "runs/limited-b"
    log = log_of(cluster, job)
    wait_until(lambda: checkpoint_step(run_dir) > 0, "a checkpoint", seconds=300, pause_seconds=0.1)
    # As Slurm does before a time limit.
    cluster.login.run(["scancel", "--batch", "--signal=USR1", job["job"]], user=USER)
    assert wait_for_end(cluster, job["job"], log)["Restarts"] == "1"
    said = log.read_text()
    stopped = re.search(
        r"saved on SIGUSR1; the newest checkpoint is of step (\d+)\n.*the time limit is near", said
    )
    assert stopped, said
    (again,) = [line for line in lines(run_dir, "event") if line["event"] == "resumed"]
    # NeMo counts from 0.
    assert again["step"] == int(stopped[1]) + 1 and again["lost_steps"] == 0
    assert json.loads((run_dir / "all_results.json").read_text())["steps"] == 80
