"""make usage: the bill of jobs with known times on a real Slurm, across a requeue, a resize and midnight."""

from __future__ import annotations

import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from config.reading.loader import load_slurm_cluster
from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.patience import wait_until
from tests.cluster.test_drained_nodes import Controller
from tests.cluster.test_users import submit
from tools.usage.node_kinds import cluster_node_kinds
from tools.usage.period import SECONDS_PER_HOUR, Period, parse_period
from tools.usage.records import Accounting
from tools.usage.slurm_accounting import read_accounting
from tools.usage.team_bill import JobOnType, TeamBill, make_team_bill

CLUSTER_FILE = Path(__file__).with_name("cluster.yaml")
GPUS_PER_NODE = 4
ACCOUNTS = {"ada": "esm2", "ben": "esmfold"}
TWO_NODES = "--nodes=2"
LONG = "sleep 600"
NOT_YET = sys.maxsize
"""End of a job that runs."""
SECONDS_PER_PHASE = 15
# Slurm records whole seconds, and a command may reach it in the second after the one in which it was given.
TOLERANCE = 0.01
SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR


@dataclass
class Run:
    """Time in which a job had the same nodes, in seconds since 1970."""

    num_nodes: int
    start: int
    end: int


@dataclass
class KnownJob:
    """Job of the test, with its times from slurmctld and from the test's own clock."""

    job: str
    user: str
    account: str
    gpus_per_node: int
    runs: list[Run]
    state: str
    """State in the accounting, while the requeued and the resized job run."""

    def gpu_seconds(self, period: Period) -> int:
        """Return the GPU seconds of the job in the period."""
        return sum(
            run.num_nodes * self.gpus_per_node * period.seconds_of(run.start, run.end)
            for run in self.runs
        )


@dataclass
class Times:
    """The test's jobs, and the seconds of what was done to them."""

    requeued: KnownJob
    """Job that was requeued, on one node."""
    resized: KnownJob
    """Job that had two nodes, and then one."""
    ended: list[KnownJob]
    """Jobs that failed, were cancelled or were completed before ``until``."""
    since: int
    """A second in which the jobs of the beginning ran for the first time."""
    requeue: int
    restart: int
    until: int
    """A second in which the requeued and the resized job ran, after all changes."""

    @property
    def jobs(self) -> list[KnownJob]:
        return [self.requeued, self.resized, *self.ended]

    @property
    def running(self) -> list[KnownJob]:
        """Jobs that run until the test cancels them."""
        return [self.requeued, self.resized]

    def gpu_seconds(self, period: Period) -> dict[str, int]:
        """Return the GPU seconds of each job in the period."""
        return {job.job: job.gpu_seconds(period) for job in self.jobs}

    def sums(self, period: Period, key: Callable[[KnownJob], str]) -> dict[str, int]:
        """Return the GPU seconds in the period of the jobs that share a property."""
        found: dict[str, int] = defaultdict(int)
        for job in self.jobs:
            found[key(job)] += job.gpu_seconds(period)
        return dict(found)


def next_second() -> int:
    """Wait for the beginning of a second, and return it."""
    second = int(time.time()) + 1
    time.sleep(second - time.time())
    return second


def second_of(cluster: Cluster, job: str, field: str, states: Collection[str]) -> int:
    """Wait until the job is in one of the states, and return a time of it, from slurmctld."""
    found: dict[str, str] = {}

    def is_there() -> bool:
        command = ["scontrol", "--oneliner", "show", "job", job]
        shown = cluster.controller.run(command, environment={"SLURM_TIME_FORMAT": "%s"}).output
        found.update(re.findall(r"(\w+)=(\S*)", shown))
        return found["JobState"] in states

    wait_until(is_there, f"job {job} to be {' or '.join(states)}", seconds=240)
    return int(found[field])


def start_of(cluster: Cluster, job: str) -> int:
    # A short job may have ended by now.
    return second_of(cluster, job, "StartTime", ("RUNNING", "COMPLETED"))


def end_of(cluster: Cluster, job: str) -> int:
    return second_of(cluster, job, "EndTime", ("COMPLETED", "FAILED", "CANCELLED"))


def known_job(
    cluster: Cluster, user: str, gpus_per_node: int, *options: str, script: str, state: str
) -> KnownJob:
    """Submit a job, wait until it has started, and return it as if it ran until ``NOT_YET``."""
    gpus = f"--gpus-per-node={gpus_per_node}"
    job = submit(cluster.login, user, gpus, *options, script=script)
    num_nodes = 2 if TWO_NODES in options else 1
    run = Run(num_nodes, start_of(cluster, job), NOT_YET)
    return KnownJob(job, user, ACCOUNTS[user], gpus_per_node, [run], state)


@pytest.fixture
def times(cluster: Cluster, lifecycle: Lifecycle) -> Iterator[Times]:
    """Jobs of two users; the requeued and the resized one run until the test ends."""
    cluster.wait_for_slurm()
    controller = cluster.controller
    resized = known_job(
        cluster, "ben", GPUS_PER_NODE, "--exclusive", TWO_NODES, script=LONG, state="RUNNING"
    )
    # These three share the third node.
    requeued = known_job(cluster, "ada", 2, "--requeue", script=LONG, state="RUNNING")
    cancelled = known_job(cluster, "ada", 1, script=LONG, state="CANCELLED")
    script = f"sleep {SECONDS_PER_PHASE}; exit 3"
    failed = known_job(cluster, "ben", 1, script=script, state="FAILED")
    beginning = (resized, requeued, cancelled, failed)
    since = max(job.runs[0].start for job in beginning) + 1
    time.sleep(SECONDS_PER_PHASE)

    requeue = next_second()
    controller.run(["scontrol", "requeue", requeued.job])
    requeued.runs[0].end = requeue
    resize = next_second()
    update = ["scontrol", "update", f"JobId={resized.job}", "NumNodes=1"]
    controller.run(["env", "--chdir=/tmp", *update])
    resized.runs[0].end = resize
    resized.runs.append(Run(1, resize, NOT_YET))
    cancelled.runs[0].end = next_second()
    controller.run(["scancel", cancelled.job])

    script = f"sleep {SECONDS_PER_PHASE}"
    # One has the node that the resized job has left; the other one has a part of the third node.
    whole = known_job(
        cluster, "ada", GPUS_PER_NODE, "--exclusive", script=script, state="COMPLETED"
    )
    part = known_job(cluster, "ben", 2, script=script, state="COMPLETED")
    restart = start_of(cluster, requeued.job)
    requeued.runs.append(Run(1, restart, NOT_YET))
    for job in (failed, whole, part):
        job.runs[0].end = end_of(cluster, job.job)
    wait_until(
        lambda: time.time() > restart + SECONDS_PER_PHASE,
        "the end of the last phase",
        seconds=240,
    )
    yield Times(
        requeued=requeued,
        resized=resized,
        ended=[failed, cancelled, whole, part],
        since=since,
        requeue=requeue,
        restart=restart,
        until=next_second(),
    )
    # The test has cancelled them, unless it failed.
    controller.run(["scancel", requeued.job, resized.job], check=False)
    cluster.wait_for_slurm()


def read(cluster: Cluster, period: Period, *, time_zone: str = "UTC") -> Accounting:
    # With a command for sessions, it is not the head node on which the tool itself runs.
    head = Controller(
        "controller-1",
        start=("a session",),
        machine=cluster.controller,
        environment={"TZ": time_zone},
    )
    return read_accounting(head, period)


def bill(accounting: Accounting, period: Period) -> TeamBill:
    kinds = cluster_node_kinds(load_slurm_cluster(CLUSTER_FILE), {}, {})
    return make_team_bill(accounting, kinds, period)


def gpu_seconds(made: TeamBill, times: Times) -> dict[str, float]:
    """Return the GPU seconds of the test's jobs; other tests may have run jobs on the same day."""
    seconds = {job.job: 0.0 for job in times.jobs}
    for use in made.uses:
        if use.job.job in seconds:
            seconds[use.job.job] += use.amount.gpu_hours * SECONDS_PER_HOUR
    return seconds


def sums(made: TeamBill, key: Callable[[JobOnType], str]) -> dict[str, float]:
    """Return the GPU seconds of all jobs of the bill that share a property."""
    return {total.name: total.amount.gpu_hours * SECONDS_PER_HOUR for total in made.totals(key)}


@dataclass(frozen=True)
class Midnight:
    """Midnight of a time zone that is chosen so that it is at a given second."""

    second: int

    @property
    def _offset(self) -> int:
        """Seconds by which the zone is ahead of UTC, at most twelve hours in both directions."""
        behind = self.second % SECONDS_PER_DAY
        return -behind if behind <= SECONDS_PER_DAY // 2 else SECONDS_PER_DAY - behind

    @property
    def time_zone(self) -> str:
        """Value of TZ, in which the sign means west of Greenwich."""
        sign = "-" if self._offset >= 0 else "+"
        return f"<local>{sign}{timedelta(seconds=abs(self._offset))}"

    def days(self) -> tuple[Period, Period]:
        """Return the days before and after midnight, from texts as users write them."""
        zone = timezone(timedelta(seconds=self._offset))
        midnight = datetime.fromtimestamp(self.second, zone)
        assert f"{midnight:%H:%M:%S}" == "00:00:00"
        day = timedelta(days=1)
        before, at, after = [
            each.isoformat() for each in (midnight - day, midnight, midnight + day)
        ]
        now = datetime.now(UTC)
        return parse_period(before, at, now), parse_period(at, after, now)


@pytest.fixture
def set_time_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Function that changes the time zone of this process until the test ends."""

    def change(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield change
    monkeypatch.undo()
    time.tzset()


@pytest.mark.timeout(240)
def test_a_bill_agrees_with_the_times_of_jobs(
    cluster: Cluster, times: Times, set_time_zone: Callable[[str], None]
) -> None:
    period = Period(times.since, times.until)
    accounting = read(cluster, period)
    made = bill(accounting, period)
    found = gpu_seconds(made, times)
    expected = times.gpu_seconds(period)
    print(f"GPU seconds: expected {expected}, found {found}")
    assert len(made.uses) == len(times.jobs)
    assert found == pytest.approx(expected, rel=TOLERANCE)
    by_user = times.sums(period, lambda job: job.user)
    assert sums(made, lambda job: job.user) == pytest.approx(by_user, rel=TOLERANCE)
    by_account = times.sums(period, lambda job: job.account)
    assert sums(made, lambda job: job.account) == pytest.approx(by_account, rel=TOLERANCE)
    used_seconds = made.used.gpu_hours * SECONDS_PER_HOUR
    assert used_seconds == pytest.approx(sum(expected.values()), rel=TOLERANCE)
    # A job has the part of a node that it has of the node's GPUs.
    assert made.used.gpu_hours == pytest.approx(GPUS_PER_NODE * made.used.node_hours)
    states = {use.job.job: use.states for use in made.uses}
    assert {job: each[-1] for job, each in states.items()} == {
        job.job: job.state for job in times.jobs
    }
    assert [len(states[job.job]) for job in times.running] == [2, 2]

    end = next_second()
    cluster.controller.run(["scancel", *(job.job for job in times.running)])
    for job in times.running:
        job.runs[-1].end = end
    cluster.wait_for_slurm()
    # The jobs' ends are after the period.
    assert gpu_seconds(bill(read(cluster, period), period), times) == pytest.approx(found)

    # Midnight may be in the first runs, between the two runs of a job, and in the last runs.
    for second in (
        (times.since + times.requeue) // 2,
        (times.requeue + times.restart) // 2,
        (times.restart + times.until) // 2,
    ):
        midnight = Midnight(second)
        set_time_zone(midnight.time_zone)
        days = midnight.days()
        assert days[0].until == days[1].since == second
        parts = []
        for day in days:
            of_day = bill(read(cluster, day, time_zone=midnight.time_zone), day)
            parts.append(gpu_seconds(of_day, times))
        known = [times.gpu_seconds(day) for day in days]
        print(f"midnight at {second}, TZ={midnight.time_zone}: expected {known}, found {parts}")
        for part, known_part in zip(parts, known, strict=True):
            assert all(part[job.job] > 0 for job in times.running)
            # A second of each command, on all GPUs of one node.
            assert part == pytest.approx(known_part, abs=GPUS_PER_NODE)
        total = sum(sum(part.values()) for part in parts)
        assert total == pytest.approx(sum(sum(part.values()) for part in known), rel=TOLERANCE)
