"""The stage train-bionemo on Slurm, with entry points that stand in for BioNeMo's: no step is a training."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from seqlm.launch.progress import bionemo_step
from tests.cluster.cluster import Cluster
from tests.cluster.patience import wait_until
from tests.cluster.training import (
    GID,
    HOME,
    PYTHON,
    UID,
    USER,
    log_of,
    nodes_of,
    submit,
    wait_for_end,
)
from tests.workloads.bionemo.stand_in_bionemo import STEP_SECONDS, make_packages
from tests.workloads.training.training_runs import lines

PROCESS = "seqlm.commands.train_bionemo --config"
NUM_STEPS = 80
SAVE_EVERY = 10
RUN = (
    *("name=stand-in", "model.init_from=null", f"train.max_steps={NUM_STEPS}"),
    *(
        f"train.save_every_steps={SAVE_EVERY}",
        "train.precision=bf16",
        f"--python={HOME}/bionemo-python",
    ),
    # Prepared and exported by the job.
    *("data.source=[sample]", "data.path=data/bionemo"),
)


@pytest.fixture(scope="module")
def job(cluster: Cluster, home: Path) -> dict[str, str]:
    make_packages(home / "packages")
    python = home / "bionemo-python"
    path = PYTHON.replace("$PYTHONPATH", f"$PYTHONPATH:{HOME}/packages")
    python.write_text(path.replace("OMP", f"{STEP_SECONDS}=0.2 OMP"))
    python.chmod(0o755)
    for path in (python, home / "packages", *(home / "packages").rglob("*")):
        os.chown(path, UID, GID)
    return submit(cluster, *RUN, stage="train-bionemo")


def reach(run_dir: Path, step: int, log: Path) -> None:
    try:
        wait_until(lambda: bionemo_step(run_dir) >= step, "a checkpoint", seconds=300)
    except TimeoutError as error:
        raise AssertionError(log.read_text()) from error


def test_resumes_from_bionemos_checkpoint(
    cluster: Cluster, home: Path, job: dict[str, str]
) -> None:
    """After the death of a process, and after a time limit, where it saves first."""
    run_dir = home / "runs/stand-in"
    log = log_of(cluster, job)
    reach(run_dir, SAVE_EVERY, log)
    nodes = nodes_of(cluster, job["job"])
    nodes[-1].run(["pkill", "--signal=KILL", "--newest", "--full", PROCESS])
    wait_until(lambda: "crash 1 of 3" in log.read_text(), "the crash to be counted", seconds=240)
    reach(run_dir, bionemo_step(run_dir) + SAVE_EVERY, log)
    # As Slurm does before a time limit.
    cluster.login.run(["scancel", "--batch", "--signal=USR1", job["job"]], user=USER)
    found = wait_for_end(cluster, job["job"], log)
    said = log.read_text()
    crash = rf"crash 1 of 3 since step \d+: {nodes[-1].hostname}, process 1: status 137\n"
    assert re.search(crash, said), said
    stopped = re.search(
        r"saved on SIGUSR1; the newest checkpoint is of step (\d+)\n.*the time limit is near", said
    )
    assert stopped and found["Restarts"] == "1", said
    assert (
        said.count("train_esm2 --num-nodes=2 --num-gpus=1 ") == 3 and "--resume-if-exists" in said
    )
    results = json.loads((run_dir / "all_results.json").read_text())
    assert results["steps"] == NUM_STEPS and results["world_size"] == 2
    _, again = [line for line in lines(run_dir, "event") if line["event"] == "resumed"]
    assert again["step"] == int(stopped[1]) and again["lost_steps"] == 0
    steps = [line["step"] for line in lines(run_dir, "train")]
    assert steps == list(range(1, NUM_STEPS + 1)), "each step once"
