"""make usage: the bill of jobs with known times on a real Slurm, across a requeue, a resize and midnight."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
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
from tools.usage.team_bill import TeamBill, make_team_bill

CLUSTER_FILE = Path(__file__).with_name("cluster.yaml")
GPUS_PER_NODE = 4
OPTIONS = ("--exclusive", f"--gpus-per-node={GPUS_PER_NODE}", "--requeue")
SECONDS_PER_PHASE = 15
# Slurm records whole seconds, and a command may reach it in the second after the one in which it was given.
TOLERANCE = 0.01
SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR


@dataclass
class Times:
    """Seconds of the test's jobs, as slurmctld and the test's own clock have them."""

    requeued: str
    """Job that was requeued, on one node."""
    resized: str
    """Job that had two nodes, and then one."""
    starts: tuple[int, int]
    """First start of the requeued and of the resized job."""
    since: int
    """A second in which both jobs ran for the first time."""
    requeue: int
    restart: int
    resize: int
    until: int
    """A second in which both jobs ran, after all changes."""
    end: int
    """End of both jobs; ``until`` as long as they run."""

    def node_seconds(self, period: Period) -> dict[str, int]:
        """Return the node seconds of each job in the period."""
        requeued_start, resized_start = self.starts
        return {
            self.requeued: period.seconds_of(requeued_start, self.requeue)
            + period.seconds_of(self.restart, self.end),
            self.resized: 2 * period.seconds_of(resized_start, self.resize)
            + period.seconds_of(self.resize, self.end),
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

    wait_until(lambda: "JobState=RUNNING" in shown(), f"job {job} to run", seconds=240)
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
    starts = start_of(cluster, requeued), start_of(cluster, resized)
    time.sleep(SECONDS_PER_PHASE)
    requeue = next_second()
    controller.run(["scontrol", "requeue", requeued])
    resize = next_second()
    controller.run(["env", "--chdir=/tmp", "scontrol", "update", f"JobId={resized}", "NumNodes=1"])
    restart = start_of(cluster, requeued)
    time.sleep(SECONDS_PER_PHASE)
    until = next_second()
    yield Times(
        requeued=requeued,
        resized=resized,
        starts=starts,
        since=max(starts) + 1,
        requeue=requeue,
        restart=restart,
        resize=resize,
        until=until,
        end=until,
    )
    # The test has cancelled them, unless it failed.
    controller.run(["scancel", requeued, resized], check=False)
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


def node_seconds(made: TeamBill, times: Times) -> dict[str, float]:
    """Return the node seconds of the test's jobs; other tests may have run jobs on the same day."""
    seconds = {times.requeued: 0.0, times.resized: 0.0}
    for use in made.uses:
        if use.job.job in seconds:
            seconds[use.job.job] += use.amount.node_hours * SECONDS_PER_HOUR
    return seconds


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
    found = node_seconds(made, times)
    expected = times.node_seconds(period)
    print(f"node seconds: expected {expected}, found {found}")
    assert len(made.uses) == 2
    assert sum(found.values()) == pytest.approx(sum(expected.values()), rel=TOLERANCE)
    assert made.used.gpu_hours == pytest.approx(GPUS_PER_NODE * made.used.node_hours)
    assert {(total.name, total.num_jobs) for total in made.totals(lambda job: job.account)} == {
        ("esm2", 1),
        ("esmfold", 1),
    }
    states = {use.job.job: use.states for use in made.uses}
    assert states[times.requeued][-1] == states[times.resized][-1] == "RUNNING"
    assert [len(states[job]) for job in (times.requeued, times.resized)] == [2, 2]

    times.end = next_second()
    cluster.controller.run(["scancel", times.requeued, times.resized])
    cluster.wait_for_slurm()
    # The jobs' ends are after the period.
    assert node_seconds(bill(read(cluster, period), period), times) == pytest.approx(found)

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
            parts.append(node_seconds(of_day, times))
        known = [times.node_seconds(day) for day in days]
        print(f"midnight at {second}, TZ={midnight.time_zone}: expected {known}, found {parts}")
        for part, known_part in zip(parts, known, strict=True):
            assert min(part.values()) > 0
            # A second of each command.
            assert part == pytest.approx(known_part, abs=1)
        total = sum(sum(part.values()) for part in parts)
        assert total == pytest.approx(sum(sum(part.values()) for part in known), rel=TOLERANCE)
