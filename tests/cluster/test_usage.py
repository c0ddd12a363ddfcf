"""make usage: the bill of jobs with known times on a real Slurm, across a requeue and a resize."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from config.reading.loader import load_slurm_cluster
from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.patience import wait_until
from tests.cluster.test_drained_nodes import Controller
from tests.cluster.test_users import submit
from tools.usage.node_kinds import cluster_node_kinds
from tools.usage.period import SECONDS_PER_HOUR, Period
from tools.usage.records import Accounting
from tools.usage.slurm_accounting import read_accounting
from tools.usage.team_bill import TeamBill, make_team_bill

CLUSTER_FILE = Path(__file__).with_name("cluster.yaml")
GPUS_PER_NODE = 4
OPTIONS = ("--exclusive", f"--gpus-per-node={GPUS_PER_NODE}", "--requeue")
SECONDS_PER_PHASE = 15
# Slurm records whole seconds, and a command may reach it in the second after the one in which it was given.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Times:
    """Seconds of the test's jobs, as slurmctld and the test's own clock have them."""

    requeued: str
    """Job that was requeued, on one node."""
    resized: str
    """Job that had two nodes, and then one."""
    since: int
    """A second in which both jobs ran for the first time."""
    requeue: int
    restart: int
    resize: int
    until: int
    """A second in which both jobs ran, after all changes."""

    @property
    def node_seconds(self) -> dict[str, int]:
        """Node seconds of each job from ``since`` to ``until``."""
        return {
            self.requeued: self.requeue - self.since + self.until - self.restart,
            self.resized: 2 * (self.resize - self.since) + self.until - self.resize,
        }


def next_second() -> int:
    """Wait for the beginning of a second, and return it."""
    second = int(time.time()) + 1
    time.sleep(second - time.time())
    return second


def start_of(cluster: Cluster, job: str) -> int:
    """Wait until the job runs, and return the second of its start, from slurmctld."""

    def shown() -> str:
        command = ["scontrol", "--oneliner", "show", "job", job]
        return cluster.controller.run(command, environment={"SLURM_TIME_FORMAT": "%s"}).output

    wait_until(lambda: "JobState=RUNNING" in shown(), f"job {job} to run", seconds=60)
    found = re.search(r"StartTime=(\d+)", shown())
    assert found
    return int(found[1])


@pytest.fixture
def times(cluster: Cluster, lifecycle: Lifecycle) -> Iterator[Times]:
    """Two jobs, one of which is requeued, and the other one resized; they run until the test ends."""
    cluster.wait_for_slurm()
    controller = cluster.controller
    requeued = submit(cluster.login, "ada", *OPTIONS, script="sleep 600")
    resized = submit(cluster.login, "ben", *OPTIONS, "--nodes=2", script="sleep 600")
    since = max(start_of(cluster, job) for job in (requeued, resized)) + 1
    time.sleep(SECONDS_PER_PHASE)
    requeue = next_second()
    controller.run(["scontrol", "requeue", requeued])
    resize = next_second()
    controller.run(["env", "--chdir=/tmp", "scontrol", "update", f"JobId={resized}", "NumNodes=1"])
    restart = start_of(cluster, requeued)
    time.sleep(SECONDS_PER_PHASE)
    yield Times(
        requeued=requeued,
        resized=resized,
        since=since,
        requeue=requeue,
        restart=restart,
        resize=resize,
        until=next_second(),
    )
    # The test has cancelled them, unless it failed.
    controller.run(["scancel", requeued, resized], check=False)
    cluster.wait_for_slurm()


def read(cluster: Cluster, period: Period) -> Accounting:
    # With a command for sessions, it is not the head node on which the tool itself runs.
    head = Controller("controller-1", start=("a session",), machine=cluster.controller)
    return read_accounting(head, period)


def bill(accounting: Accounting, period: Period) -> TeamBill:
    kinds = cluster_node_kinds(load_slurm_cluster(CLUSTER_FILE), {}, {})
    return make_team_bill(accounting, kinds, period)


def node_seconds(made: TeamBill) -> dict[str, float]:
    return {use.job.job: use.amount.node_hours * SECONDS_PER_HOUR for use in made.uses}


@pytest.mark.timeout(240)
def test_a_bill_agrees_with_the_times_of_jobs(cluster: Cluster, times: Times) -> None:
    period = Period(times.since, times.until)
    accounting = read(cluster, period)
    made = bill(accounting, period)
    found = node_seconds(made)
    expected = times.node_seconds
    print(f"node seconds: expected {expected}, found {found}")
    assert sum(found.values()) == pytest.approx(sum(expected.values()), rel=TOLERANCE)
    assert made.used.gpu_hours == pytest.approx(GPUS_PER_NODE * made.used.node_hours)
    assert {(total.name, total.num_jobs) for total in made.totals(lambda job: job.account)} == {
        ("esm2", 1),
        ("esmfold", 1),
    }
    states = {use.job.job: use.states for use in made.uses}
    assert states[times.requeued][-1] == states[times.resized][-1] == "RUNNING"
    assert [len(states[job]) for job in (times.requeued, times.resized)] == [2, 2]

    # A limit between two days may lie anywhere, also between the two runs of a job.
    middle = (times.since + times.until) // 2
    parts = [Period(times.since, middle), Period(middle, times.until)]
    sums = [bill(read(cluster, part), part).used.node_hours for part in parts]
    assert sum(sums) == pytest.approx(made.used.node_hours)

    # The jobs' ends are after the period.
    cluster.controller.run(["scancel", times.requeued, times.resized])
    cluster.wait_for_slurm()
    assert node_seconds(bill(read(cluster, period), period)) == pytest.approx(found)
