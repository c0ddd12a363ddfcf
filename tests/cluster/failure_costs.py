"""Cost of failures of a training run on the test cluster: repeated steps, and time until the next step.

``python -m pytest tests/cluster/failure_costs.py -s`` prints the table of docs/training-on-slurm.md in some
20 minutes; it needs root. Its name keeps it out of ``make test-cluster``: it measures, and proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from seqlm.training.tracking.run_log import read_metrics
from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.patience import wait_until
from tests.cluster.training import (
    TRAINING,
    USER,
    job_of,
    log_of,
    nodes_of,
    submit,
    tool,
    wait_for_end,
)

INTERVALS = (5, 20, 80)
"""Steps between checkpoints."""
HANG_SECONDS = 15


@dataclass(frozen=True)
class Cost:
    failure: str
    interval: int
    lost_steps: int
    seconds: float
    """Seconds from the failure to the end of the next step."""


class Training:
    """Two of the three nodes train without end, and save every ``interval`` steps."""

    def __init__(self, cluster: Cluster, home: Path, interval: int) -> None:
        name = f"saving-{interval}"
        self._cluster = cluster
        self._interval = interval
        self._metrics = home / "runs" / name / "metrics.jsonl"
        endless = "train.max_steps=1000000", f"train.save_every_steps={interval}", "--time=6:00:00"
        job = submit(cluster, f"name={name}", *endless, f"--hang-seconds={HANG_SECONDS}")
        self._job = job["job"]
        self._log = log_of(cluster, job)

    def cost_of(self, failure: str, cause: Callable[[], float]) -> Cost:
        """Let it fail half an interval behind a checkpoint, and wait for a step of its next start."""
        starts = self._events("resumed")
        enough = (starts[-1]["step"] if starts else 0) + 2 * self._interval + self._interval // 2
        wait_until(lambda: self._last_step() >= enough, f"step {enough}: {self._log}", seconds=180)
        failed = cause()

        def goes_on() -> bool:
            again = self._events("resumed")
            return len(again) > len(starts) and self._last_step() > again[-1]["step"]

        wait_until(goes_on, f"a step after {failure}: {self._log}", seconds=300)
        seconds = time.monotonic() - failed
        cost = Cost(failure, self._interval, self._events("resumed")[-1]["lost_steps"], seconds)
        print(cost, flush=True)
        return cost

    def kill_process(self) -> float:
        return self._signal_process("KILL")

    def stop_process(self) -> float:
        """Not while it saves, for which a process may take half an hour until it is called hung."""
        while True:
            stopped = self._signal_process("STOP")
            time.sleep(1)
            if (step := self._last_step()) % self._interval:
                return stopped
            self._signal_process("CONT")
            wait_until(lambda step=step: self._last_step() > step, "another step", seconds=60)  # type: ignore[misc]

    def reach_time_limit(self) -> float:
        """Return the time at which the processes get the signal; Slurm takes up to half a minute."""
        told = len(self._events("stopped by SIGTERM"))
        restarts = self._restarts()
        self._limit("6", user=USER)
        wait_until(
            lambda: len(self._events("stopped by SIGTERM")) > told, "Slurm's signal", seconds=120
        )
        failed = time.monotonic()
        wait_until(lambda: self._restarts() > restarts, "the requeue", seconds=60)
        self._limit("360")
        return failed

    def destroy_node(self) -> float:
        self.destroyed = nodes_of(self._cluster, self._job)[-1]
        self._cluster.kill(self.destroyed)
        return time.monotonic()

    def end(self) -> None:
        tool(self._cluster, "tools.jobs", "cancel", self._job)
        wait_for_end(self._cluster, self._job, self._log, "CANCELLED")

    def _signal_process(self, name: str) -> float:
        node = nodes_of(self._cluster, self._job)[-1]
        node.run(["pkill", f"--signal={name}", "--newest", "--full", TRAINING])
        return time.monotonic()

    def _limit(self, minutes: str, user: str | None = None) -> None:
        machine = self._cluster.login if user else self._cluster.controller
        machine.run(["scontrol", "update", f"JobId={self._job}", f"TimeLimit={minutes}"], user=user)

    def _restarts(self) -> int:
        return int(job_of(self._cluster, self._job)["Restarts"])

    def _events(self, text: str) -> list[dict[str, Any]]:
        return [line for line in self._lines() if line.get("event") == text]

    def _last_step(self) -> int:
        return max((line["step"] for line in self._lines() if line["kind"] == "train"), default=0)

    def _lines(self) -> list[dict[str, Any]]:
        return list(read_metrics(self._metrics)) if self._metrics.exists() else []


@pytest.mark.timeout(3600)
def test_failure_costs(cluster: Cluster, lifecycle: Lifecycle, home: Path) -> None:
    costs: list[Cost] = []
    for interval in INTERVALS:
        training = Training(cluster, home, interval)
        costs.append(training.cost_of("a process is killed", training.kill_process))
        costs.append(training.cost_of(f"a process hangs ({HANG_SECONDS} s)", training.stop_process))
        costs.append(training.cost_of("the time limit comes", training.reach_time_limit))
        costs.append(training.cost_of("a node is destroyed", training.destroy_node))
        training.end()
        assert lifecycle.run(cluster.replace(training.destroyed)).status == 0
        cluster.wait_for_slurm()
    print("\n" + "\n".join(table(costs)))


def table(costs: list[Cost]) -> list[str]:
    """A row for each failure, in the order in which they were measured."""
    head = " | ".join(f"every {interval} steps" for interval in INTERVALS)
    rows = [f"| failure | saved {head} |", "|" + "---|" * (len(INTERVALS) + 1)]
    for failure in dict.fromkeys(cost.failure for cost in costs):
        cells = [
            f"{cost.lost_steps} steps, {cost.seconds:.0f} s"
            for cost in costs
            if cost.failure == failure
        ]
        rows.append(f"| {failure} | {' | '.join(cells)} |")
    return rows
