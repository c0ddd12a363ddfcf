"""Training that stops without a node's fault: a process is killed, does not start at all, or time is over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.metrics_workspace import MetricsWorkspace
from tests.cluster.patience import wait_until
from tests.cluster.training import (
    NUM_STEPS,
    SAVE_EVERY,
    TRAINING,
    USER,
    Uninterrupted,
    job_of,
    log_of,
    nodes_of,
    submit,
    tool,
    wait_for_end,
)
from tests.workloads.esm2.training_runs import events, lines, losses
from workloads.esm2.launch.slurm_attempts import newest_checkpoint

Jobs = dict[str, dict[str, str]]
SECONDS_TO_SCRAPE = 180
"""Slurm is asked for jobs every 30 s, and a job for its metrics."""
MORE_THAN_THERE_IS = 1 << 40
"""Tokens of a pack: 1 TiB, a byte each."""


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, home: Path, uninterrupted: Uninterrupted) -> Iterator[Jobs]:
    """By the run's name; they share the three nodes."""
    size = f"train.tokens_per_pack={MORE_THAN_THERE_IS}", f"train.tokens_per_step={MORE_THAN_THERE_IS}"
    jobs = {
        "limited": submit(cluster, "name=limited", "train.max_steps=1000000", "--time=6:00:00", nodes="1"),
        "crashed": submit(cluster, "name=crashed"),
        "hopeless": submit(cluster, "name=hopeless", *size, nodes="1"),
    }
    wait_until(lambda: newest_checkpoint(home / "runs/limited") >= SAVE_EVERY, "a checkpoint", seconds=240)
    # Nobody has to wait for hours: its owner shortens the limit, so that Slurm's signal is due, 300 s before.
    shorter = ["scontrol", "update", f"JobId={jobs['limited']['job']}", "TimeLimit=6"]
    cluster.login.run(shorter, user=USER)
    yield jobs
    cluster.wait_for_slurm()


def test_a_killed_process_is_started_again(
    cluster: Cluster, home: Path, jobs: Jobs, uninterrupted: Uninterrupted
) -> None:
    """As by the kernel, where memory is short; its node stays in the job."""
    job, run_dir = jobs["crashed"], home / "runs" / "crashed"
    wait_until(lambda: newest_checkpoint(run_dir) >= SAVE_EVERY, "a checkpoint", seconds=240)
    nodes = nodes_of(cluster, job["job"])
    nodes[-1].run(["pkill", "--signal=KILL", "--newest", "--full", TRAINING])
    found = wait_for_end(cluster, job["job"], log_of(cluster, job))
    assert found["Restarts"] == "0"
    log = log_of(cluster, job).read_text()
    assert re.search(rf"crash 1 of 3 since step \d+: {nodes[-1].hostname}, process 1: status 137\n", log), log
    assert "resumed" in events(run_dir)
    assert losses(run_dir) == uninterrupted.losses and len(losses(run_dir)) == NUM_STEPS


def test_a_crash_that_comes_again_is_given_up(cluster: Cluster, jobs: Jobs) -> None:
    """A batch that does not fit into memory, anywhere and at any time."""
    log = log_of(cluster, jobs["hopeless"])
    found = wait_for_end(cluster, jobs["hopeless"]["job"], log, "FAILED")
    assert found["ExitCode"] == "1:0" and found["Restarts"] == "0"
    said = log.read_text()
    assert said.count("Traceback") == 3 and "crash 3 of 3 since step 0" in said
    last = said.strip().rpartition("\n[")[2]
    assert re.search(
        r"given up; the first of these crashes was ip-\S+, process 0: status 1\n.*Unable to alloc", last
    ), last


def test_at_the_time_limit_it_saves_and_goes_on(
    cluster: Cluster, home: Path, jobs: Jobs, workspace: MetricsWorkspace
) -> None:
    """Not a step is lost, and none is done twice. Meanwhile its metrics go where those of the nodes go."""
    job, run_dir = jobs["limited"]["job"], home / "runs" / "limited"
    log = log_of(cluster, jobs["limited"])
    wait_until(lambda: "requeue 1" in log.read_text(), "Slurm's signal, and the requeue", seconds=240)
    saved = re.search(
        r"saved on SIGUSR1; the newest checkpoint is of step (\d+)\n.*the time limit is near", log.read_text()
    )
    assert saved, log.read_text()
    step = int(saved[1])
    # Else it comes again every minute, within which a busy computer may do no step.
    cluster.controller.run(["scontrol", "update", f"JobId={job}", "TimeLimit=360"])
    running = {"JobState": "RUNNING", "TimeLimit": "06:00:00"}
    wait_until(
        lambda: running.items() <= job_of(cluster, job).items(),
        "a start with time",
        seconds=120,
        pause_seconds=1,
    )
    reached = max(step, newest_checkpoint(run_dir))
    wait_until(lambda: newest_checkpoint(run_dir) > reached, "steps after the requeue", seconds=240)
    made = f'last_over_time(esm2_training_step{{run="limited", job_id="{job}", job="training"}}[15m])'
    wait_until(lambda: workspace.query(made), "metrics of the training", seconds=SECONDS_TO_SCRAPE)
    told = workspace.query(made)[0]
    assert told["metric"]["role"] == "worker" and float(told["value"][1]) > 0
    assert told["metric"]["instance"] in {machine.hostname for machine in cluster.workers}
    tool(cluster, "tools.jobs", "cancel", job)
    wait_for_end(cluster, job, log, "CANCELLED")
    # The limit may have come again at the same time, or its processes are only starting.
    assert re.search(
        r"(saved|ended) on SIGUSR[12]; the newest checkpoint is of step \d+\n.*cancelled\n", log.read_text()
    ), log.read_text()
    again = [line for line in lines(run_dir, "event") if line["event"] == "resumed"]
    assert again[0]["step"] == step and {line["lost_steps"] for line in again} == {0}
    assert set(losses(run_dir)) == set(range(1, newest_checkpoint(run_dir) + 1))
