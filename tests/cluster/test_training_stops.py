"""Training that is stopped by a death, a standstill or its time limit: it costs steps and nothing else.

The tests build on each other. One job is harmed again and again, each time at its next checkpoint. Beside
it, on the third node, another one comes to its time limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from seqlm.launch.progress import newest_checkpoint
from seqlm.training.memory.template import NAME
from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine
from tests.cluster.metrics_workspace import MetricsWorkspace
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
    tool,
    wait_for_end,
)
from tests.workloads.training.training_runs import lines, losses

TRAIN = r"-m seqlm train "
AGENT = r"-m seqlm\.launch\.node_agent "
LIST = """
for process in $(pgrep --uid "$1" --full -- "$2"); do
    [ "$(cat "/proc/$process/comm")" = "$3" ] || echo "$process"
done
"""
HANG_SECONDS = 15
SECONDS_TO_SCRAPE = 180
"""Interval of queries to Slurm for jobs, and to a job for its metrics."""
NODE_LIST = "/var/lib/discover-nodes/nodes.json"
SIGNAL_BEHIND = r"""
until [ -e "$1/checkpoints/step-$(printf %08d "$2")" ] && grep -q "\"step\": $3," "$1/metrics.jsonl"
do sleep 0.05; done
kill "-$4" "$5"
"""
"""Signals a process when its run has a checkpoint and a later step: run, both steps, signal, process."""


@dataclass
class Jobs:
    cluster: Cluster
    home: Path
    harmed: dict[str, str]
    limited: dict[str, str]
    told: Future[dict[str, Any]]
    """The state of the limited job after its time limit, when it has been cancelled."""
    dead: Machine | None = None
    """The node that has died, as long as it is not replaced."""
    lost: str = ""
    """Its name."""

    @property
    def run_dir(self) -> Path:
        return self.home / "runs/harmed"

    @property
    def log(self) -> str:
        path = log_of(self.cluster, self.harmed)
        return path.read_text() if path.exists() else ""

    @property
    def nodes(self) -> list[Machine]:
        return nodes_of(self.cluster, self.harmed["job"])

    @property
    def restarts(self) -> int:
        return int(job_of(self.cluster, self.harmed["job"])["Restarts"])

    def has_stepped_since_hang(self) -> bool:
        """Return whether the job has made a step after its third resume, which follows the hang."""
        resumed = [line for line in lines(self.run_dir, "event") if line["event"] == "resumed"]
        return len(resumed) == 3 and max(losses(self.run_dir)) > resumed[-1]["step"]

    def wait_for(self, text: str) -> None:
        wait_until(
            lambda: text in self.log, f"{text}: {log_of(self.cluster, self.harmed)}", seconds=240
        )

    def signal_at_next_checkpoint(self, signal: str, module: str) -> tuple[Machine, str]:
        """To a process of the last node, as soon as one trains there; the node, and the one that trains.

        A little behind the checkpoint: it may take its time to save, and is not called hung meanwhile.
        """
        self.wait_for("start 1, on ")
        node = self.nodes[-1]
        wait_until(
            lambda: has_template(node) and processes_of(node, TRAIN),
            f"a process that trains: {self.log}",
            seconds=240,
            pause_seconds=0.5,
        )
        (training,) = processes_of(node, TRAIN)
        (process,) = processes_of(node, module)
        step = newest_checkpoint(self.run_dir) + SAVE_EVERY
        what = [f"{HOME}/runs/harmed", str(step), str(step + 2), signal, process]
        node.run(["sh", "-c", SIGNAL_BEHIND, "sh", *what], seconds=240)
        assert max(losses(self.run_dir)) < NUM_STEPS
        return node, training


def processes_of(machine: Machine, module: str) -> list[str]:
    """Their numbers on the machine, without the template, whose command is the same."""
    return machine.run(["sh", "-c", LIST, "sh", USER, module, NAME]).output.split()


def has_template(machine: Machine) -> bool:
    """Whether the template runs and has its name: without it, it looks like a process that trains."""
    found = machine.run(["pgrep", "--uid", USER, "--exact", "--", NAME], check=False)
    return found.status == 0


def through_its_limit(
    cluster: Cluster, home: Path, workspace: MetricsWorkspace, limited: dict[str, str]
) -> dict[str, Any]:
    """Let a run reach its time limit and resume, cancel it once it is scraped, and return the metrics."""
    job = limited["job"]
    run_dir = home / "runs/limited"
    log = log_of(cluster, limited)
    wait_until(lambda: newest_checkpoint(run_dir) >= SAVE_EVERY, "a checkpoint", seconds=240)
    # The owner shortens the limit, so that Slurm's signal, 300 s before it, is due now instead of in hours.
    cluster.login.run(["scontrol", "update", f"JobId={job}", "TimeLimit=6"], user=USER)
    wait_until(
        lambda: "requeue 1" in log.read_text(), "Slurm's signal, and the requeue", seconds=240
    )
    # Else it comes again every minute, within which a busy computer may do no step.
    cluster.controller.run(["scontrol", "update", f"JobId={job}", "TimeLimit=360"])
    running = {"JobState": "RUNNING", "TimeLimit": "06:00:00"}
    wait_until(
        lambda: running.items() <= job_of(cluster, job).items(),
        "a start with time",
        seconds=240,
        pause_seconds=1,
    )
    reached = newest_checkpoint(run_dir)
    wait_until(lambda: newest_checkpoint(run_dir) > reached, "steps after the requeue", seconds=240)
    made = (
        f'last_over_time(esm2_training_step{{run="limited", job_id="{job}", job="training"}}[15m])'
    )
    wait_until(lambda: workspace.query(made), "metrics of the training", seconds=SECONDS_TO_SCRAPE)
    tool(cluster, "tools.jobs", "cancel", job)
    wait_for_end(cluster, job, log, "CANCELLED")
    return workspace.query(made)[0]


@pytest.fixture(scope="module")
def jobs(
    cluster: Cluster,
    lifecycle: Lifecycle,
    home: Path,
    uninterrupted: Uninterrupted,
    workspace: MetricsWorkspace,
) -> Iterator[Jobs]:
    limited = submit(
        cluster, "name=limited", "train.max_steps=1000000", "--time=6:00:00", nodes="1"
    )
    harmed = submit(cluster, "name=harmed", f"--hang-seconds={HANG_SECONDS}")

    with ThreadPoolExecutor(max_workers=1) as pool:
        told = pool.submit(through_its_limit, cluster, home, workspace, limited)
        jobs = Jobs(cluster, home, harmed, limited, told)
        yield jobs
    if jobs.dead:
        assert lifecycle.run(cluster.replace(jobs.dead)).status == 0
    cluster.wait_for_slurm()


def test_a_killed_process_is_started_again(jobs: Jobs) -> None:
    """The process is killed as the kernel does if memory is short; its node stays in the job."""
    node, _ = jobs.signal_at_next_checkpoint("KILL", TRAIN)
    jobs.wait_for("crash 1 of 3")
    said = rf"crash 1 of 3 since step \d+: {node.hostname}, process 1: status 137\n"
    wait_until(lambda: re.search(said, jobs.log), "what is said of the crash", seconds=240)


def test_no_process_outlives_its_torchrun(jobs: Jobs) -> None:
    """torchrun's own death leaves its processes behind; the end of the step is Slurm's to see."""
    node, training = jobs.signal_at_next_checkpoint("KILL", AGENT)
    jobs.wait_for(f"no word from torchrun of {node.hostname}")
    assert node.run(["test", "-e", f"/proc/{training}"], check=False).status, "it is still there"
    assert jobs.log.count("crash 1 of 3") == 2, "they are counted anew after a checkpoint"
    assert jobs.restarts == 0


def test_a_hung_process_is_named_and_the_job_resumes(jobs: Jobs) -> None:
    machine, _ = jobs.signal_at_next_checkpoint("STOP", TRAIN)
    jobs.wait_for("it hung")
    told = re.search(
        rf"to blame is {machine.hostname}, process (\d), it was stopped by a signal; state T, ",
        jobs.log,
    )
    assert told, jobs.log
    folder = log_of(jobs.cluster, jobs.harmed).parent
    stacks = folder / "stacks" / "0.3"
    assert f"stacks: {HOME}/runs/harmed/jobs/{folder.name}/stacks/0.3" in jobs.log
    assert {path.name for path in stacks.glob("rank-*")} == {"rank-0.txt", "rank-1.txt"}
    guilty = (stacks / f"rank-{told[1]}.txt").read_text()
    assert f"node: {machine.hostname}\n" in guilty and "state: T\n" in guilty
    for path in stacks.glob("rank-*"):
        assert "seqlm/training/train.py" in path.read_text()
    jobs.wait_for("start 2, on ")
    assert jobs.restarts == 1


def test_the_death_of_the_first_node_requeues_the_job(jobs: Jobs) -> None:
    """With it die the batch script, and where the others meet."""
    # Few steps are left, so the node dies as soon as the start after the hang has made one.
    wait_until(jobs.has_stepped_since_hang, f"a step after the hang: {jobs.log}", seconds=240)
    jobs.dead = jobs.nodes[0]
    jobs.lost = jobs.dead.hostname
    jobs.cluster.kill(jobs.dead)
    assert max(losses(jobs.run_dir)) < NUM_STEPS
    # Replaced before that, its name would be unknown to Slurm while the job still has it.
    wait_until(
        lambda: jobs.restarts == 2, "Slurm to requeue the job", seconds=240, pause_seconds=0.5
    )


def test_at_the_time_limit_it_saves_and_resumes(cluster: Cluster, home: Path, jobs: Jobs) -> None:
    """Not a step is lost, and none is done twice. Meanwhile its metrics go where those of the nodes go."""
    told = jobs.told.result(timeout=400)
    assert told["metric"]["role"] == "worker" and float(told["value"][1]) > 0
    assert told["metric"]["instance"] in {machine.hostname for machine in cluster.workers}
    run_dir = home / "runs" / "limited"
    log = log_of(cluster, jobs.limited).read_text()
    saved = re.search(
        r"saved on SIGUSR1; the newest checkpoint is of step (\d+)\n.*the time limit is near", log
    )
    assert saved, log
    # The limit may have come again at the same time, or its processes are only starting.
    assert re.search(
        r"(saved|ended) on SIGUSR[12]; the newest checkpoint is of step \d+\n.*cancelled\n", log
    ), log
    again = [line for line in lines(run_dir, "event") if line["event"] == "resumed"]
    assert again[0]["step"] == int(saved[1]) and {line["lost_steps"] for line in again} == {0}
    assert set(losses(run_dir)) == set(range(1, newest_checkpoint(run_dir) + 1))


def test_a_job_that_lacks_a_node_waits_for_the_new_one_which_is_scraped(
    cluster: Cluster, lifecycle: Lifecycle, jobs: Jobs, workspace: MetricsWorkspace
) -> None:
    """Meanwhile, training continues on the remaining node."""
    lost = jobs.dead
    assert lost
    login = cluster.login
    new = cluster.replace(lost)
    jobs.dead = None
    assert new.address != lost.address
    options = ["--parsable", "--partition=gpu", "--nodes=3", "--output=/fsx/waited"]
    waiting = login.run(["sbatch", *options], text="#!/bin/bash\nsrun hostname\n").output.strip()
    result = lifecycle.run(new)
    assert result.status == 0, result.output
    wait_until(
        lambda: new.hostname in workspace.instances('up{job="node"} == 1'),
        "the new node's metrics",
        seconds=240,
    )
    assert lost.address not in cluster.controller.read(NODE_LIST)
    wait_for_end(cluster, waiting, cluster.shared / "waited")
    assert set(login.read("/fsx/waited").split()) == {worker.hostname for worker in cluster.workers}
    job = [
        "srun",
        f"--nodelist={new.hostname}",
        "--partition=gpu",
        "--gpus=4",
        "--container-image=x.sqsh",
    ]
    assert login.run([*job, "hostname"]).output == f"{new.hostname}\n"


def test_all_of_it_has_cost_steps_and_nothing_else(
    cluster: Cluster, jobs: Jobs, uninterrupted: Uninterrupted
) -> None:
    found = wait_for_end(cluster, jobs.harmed["job"], log_of(cluster, jobs.harmed))
    assert found["Restarts"] == "2"
    started = re.search(r"start 3, on (\S+) (\S+)\n", jobs.log)
    assert started and jobs.lost and jobs.lost not in started.groups(), jobs.log
    resumed = [line for line in lines(jobs.run_dir, "event") if line["event"] == "resumed"]
    assert len(resumed) == 4 and all(line["step"] >= SAVE_EVERY for line in resumed), resumed
    assert f"resumed, lost steps {resumed[-1]['lost_steps']}" in jobs.log
    # The same numbers to the last bit, each step once.
    assert losses(jobs.run_dir) == uninterrupted.losses
    assert len(losses(jobs.run_dir)) == NUM_STEPS
    assert json.loads((jobs.run_dir / "all_results.json").read_text())["world_size"] == 2
    report = cluster.shared / Path(jobs.harmed["report"]).relative_to("/fsx")
    assert "<svg" in report.read_text()
