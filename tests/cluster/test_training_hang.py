"""Training that stands still, and processes without their torchrun: found, ended, and gone on from."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until
from tests.cluster.training import (
    HOME,
    NUM_STEPS,
    SAVE_EVERY,
    USER,
    Uninterrupted,
    job_of,
    log_of,
    nodes_of,
    submit,
    wait_for_end,
)
from tests.workloads.esm2.training_runs import lines, losses
from workloads.esm2.launch.slurm_attempts import newest_checkpoint

TRAIN, AGENT = r"-m workloads\.esm2\.train ", r"-m workloads\.esm2\.launch\.node_agent "
HANG_SECONDS = 10
STOP_BEHIND = r"""
until [ -e "$1/checkpoints/step-$(printf %08d "$2")" ] && grep -q "\"step\": $3," "$1/metrics.jsonl"
do sleep 0.05; done
kill -STOP "$4"
"""
"""Stops a process when its run has a whole checkpoint and a later step: run, the two steps, process."""


def process_of(machine: Machine, module: str) -> str:
    """Its number on the machine."""
    (found,) = machine.run(["pgrep", "--uid", USER, "--full", "--", module]).output.split()
    return found


def start(cluster: Cluster, home: Path, name: str, *arguments: str) -> tuple[dict[str, str], Path, Machine]:
    """A training that has written a checkpoint; the job, its run, and its last node."""
    job, run_dir = submit(cluster, f"name={name}", *arguments), home / "runs" / name
    wait_until(lambda: newest_checkpoint(run_dir) >= SAVE_EVERY, "a checkpoint", seconds=240)
    return job, run_dir, nodes_of(cluster, job["job"])[-1]


def test_a_hung_process_is_blamed_and_the_job_goes_on(
    cluster: Cluster, home: Path, uninterrupted: Uninterrupted
) -> None:
    # It may take its time to save. So it is stopped a little behind the first checkpoint, by a command that
    # waits for it beside it.
    interval = NUM_STEPS // 2
    options = (f"--hang-seconds={HANG_SECONDS}", f"train.save_every_steps={interval}")
    job, run_dir = submit(cluster, "name=hung", *options), home / "runs" / "hung"
    wait_until(lambda: (run_dir / "metrics.jsonl").exists(), "the start", seconds=240)
    machine = nodes_of(cluster, job["job"])[-1]
    process = process_of(machine, TRAIN)
    what = [f"{HOME}/runs/hung", str(interval), str(interval + 2), process]
    machine.run(["sh", "-c", STOP_BEHIND, "sh", *what], seconds=240)
    assert max(losses(run_dir)) < NUM_STEPS
    log = log_of(cluster, job)
    wait_until(lambda: "it hung" in log.read_text(), "the hang to be seen", seconds=240)
    told = re.search(
        rf"to blame is {machine.hostname}, process (\d), it was stopped by a signal; state T, ",
        log.read_text(),
    )
    assert told, log.read_text()
    stacks = log.parent / "stacks" / "0.1"
    assert f"stacks: {HOME}/runs/hung/jobs/{log.parent.name}/stacks/0.1" in log.read_text()
    assert {path.name for path in stacks.glob("rank-*")} == {"rank-0.txt", "rank-1.txt"}
    guilty = (stacks / f"rank-{told[1]}.txt").read_text()
    assert f"node: {machine.hostname}\n" in guilty and "state: T\n" in guilty
    for path in stacks.glob("rank-*"):
        assert "workloads/esm2/train.py" in path.read_text()
    found = wait_for_end(cluster, job["job"], log)
    assert found["Restarts"] == "1"
    (resumed,) = [line for line in lines(run_dir, "event") if line["event"] == "resumed"]
    assert resumed["step"] >= SAVE_EVERY and f"resumed, lost steps {resumed['lost_steps']}" in log.read_text()
    assert losses(run_dir) == uninterrupted.losses


def test_no_process_outlives_its_torchrun(cluster: Cluster, home: Path, uninterrupted: Uninterrupted) -> None:
    """torchrun's own death leaves its processes behind; the end of the step is Slurm's to see."""
    job, run_dir, machine = start(cluster, home, "orphaned")
    worker = process_of(machine, TRAIN)
    machine.run(["kill", "-KILL", process_of(machine, AGENT)])
    log = log_of(cluster, job)
    wait_until(lambda: "crash 1 of 3" in log.read_text(), "the crash to be counted", seconds=240)
    assert machine.run(["test", "-e", f"/proc/{worker}"], check=False).status, "it is still there"
    assert f"no word from torchrun of {machine.hostname}" in log.read_text()
    wait_for_end(cluster, job["job"], log)
    assert job_of(cluster, job["job"])["Restarts"] == "0"
    assert losses(run_dir) == uninterrupted.losses
