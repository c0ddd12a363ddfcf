"""The stage train-bionemo on Slurm, with entry points that stand in for BioNeMo's: no step is a training."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.patience import wait_until
from tests.cluster.training import GID, HOME, PYTHON, UID, USER, log_of, nodes_of, submit, tool, wait_for_end
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
    # Prepared and exported by the jobs, of which the second one waits for the first.
    *("data.source=[sample]", "data.path=data/sample"),
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
    made = {"killed": submit(cluster, "name=killed", *RUN, stage="train-bionemo")}
    endless = "train.max_steps=1000000"
    return made | {
        "limited": submit(cluster, "name=endless", *RUN, endless, stage="train-bionemo", nodes="1")
    }


def reach(run_dir: Path, step: int, log: Path) -> None:
    try:
        wait_until(lambda: checkpoint_step(run_dir) >= step, "a checkpoint", seconds=300)
    except TimeoutError as error:
        raise AssertionError(log.read_text()) from error


def test_a_killed_run_goes_on_from_bionemos_checkpoint(
    cluster: Cluster, home: Path, jobs: dict[str, dict[str, str]]
) -> None:
    job, run_dir = jobs["killed"], home / "runs/killed"
    reach(run_dir, SAVE_EVERY, log_of(cluster, job))
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
    job, run_dir = jobs["limited"], home / "runs/endless"
    log = log_of(cluster, job)
    reach(run_dir, SAVE_EVERY, log)
    # As Slurm does before a time limit.
    cluster.login.run(["scancel", "--batch", "--signal=USR1", job["job"]], user=USER)
    wait_until(lambda: "requeue 1" in log.read_text(), "the requeue", seconds=240)
    said = log.read_text()
    stopped = re.search(
        r"saved on SIGUSR1; the newest checkpoint is of step (\d+)\n.*the time limit is near", said
    )
    assert stopped, said
    reach(run_dir, int(stopped[1]) + 1, log)
    tool(cluster, "tools.jobs", "cancel", job["job"])
    wait_for_end(cluster, job["job"], log, "CANCELLED")
    (again,) = [line for line in lines(run_dir, "event") if line["event"] == "resumed"]
    assert again["step"] == int(stopped[1]) and again["lost_steps"] == 0
    steps = [line["step"] for line in lines(run_dir, "train")]
    assert steps == list(range(1, steps[-1] + 1)) and steps[-1] > again["step"], "each step once"
