"""Cost of failures of a training run on the test cluster: repeated steps, and time until the next step.

``python -m pytest tests/cluster/failure_costs.py -s`` prints the table of docs/training-on-slurm.md in some
20 minutes; it needs root. Its name keeps it out of ``make test-cluster``: it measures, and proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    """Two of the three nodes train."""

    def __init__(self, cluster: Cluster, home: Path, name: str, *overrides: str) -> None:
        self._cluster = cluster
        self._metrics = home / "runs" / name / "metrics.jsonl"
        options = "--time=6:00:00", f"--hang-seconds={HANG_SECONDS}"
        job = submit(cluster, f"name={name}", *options, *overrides)
        self.job = job["job"]
        self.log = log_of(cluster, job)

    def cost_of(self, failure: str, cause: Callable[[], float], interval: int) -> Cost:
        """Let it fail half an interval behind a save.

        Args:
            failure: name of the failure.
            cause: function that causes it, and returns its time.
            interval: steps between two saves.
        """
        starts = self.events("resumed")
        self.wait_for((starts[-1]["step"] if starts else 0) + 2 * interval + interval // 2)
        return self.failed(failure, cause, interval)

    def failed(self, failure: str, cause: Callable[[], float], interval: int) -> Cost:
        """Let it fail now, and wait for a step of its next start."""
        num_starts = len(self.events("resumed"))
        began = cause()

        def goes_on() -> bool:
            starts = self.events("resumed")
            return len(starts) > num_starts and self.last_step() > starts[-1]["step"]

        wait_until(goes_on, f"a step after {failure}: {self.log}", seconds=600)
        seconds = time.monotonic() - began
        cost = Cost(failure, interval, self.events("resumed")[-1]["lost_steps"], seconds)
        print(cost, flush=True)
        return cost

    def wait_for(self, step: int) -> None:
        wait_until(lambda: self.last_step() >= step, f"step {step}: {self.log}", seconds=1200)

    def kill_process(self) -> float:
        return self._signal_process("KILL")

    def stop_process(self, interval: int) -> float:
        """Not while it saves, for which a process may take half an hour until it is called hung."""
        while True:
            stopped = self._signal_process("STOP")
            time.sleep(1)
            if (step := self.last_step()) % interval:
                return stopped
            self._signal_process("CONT")
            wait_until(lambda step=step: self.last_step() > step, "another step", seconds=240)  # type: ignore[misc]

    def reach_time_limit(self) -> float:
        """Return the time at which the processes get the signal; Slurm takes up to half a minute."""
        told = len(self.events("stopped by SIGTERM"))
        restarts = self._restarts()
        self._limit("6", user=USER)
        wait_until(
            lambda: len(self.events("stopped by SIGTERM")) > told, "Slurm's signal", seconds=240
        )
        failed = time.monotonic()
        wait_until(lambda: self._restarts() > restarts, "the requeue", seconds=240)
        self._limit("360")
        return failed

    def destroy_node(self) -> float:
        self.destroyed = nodes_of(self._cluster, self.job)[-1]
        self._cluster.kill(self.destroyed)
        return time.monotonic()

    def end(self) -> None:
        tool(self._cluster, "tools.jobs", "cancel", self.job)
        wait_for_end(self._cluster, self.job, self.log, "CANCELLED")

    def _signal_process(self, name: str) -> float:
        node = nodes_of(self._cluster, self.job)[-1]
        node.run(["pkill", f"--signal={name}", "--newest", "--full", TRAINING])
        return time.monotonic()

    def _limit(self, minutes: str, user: str | None = None) -> None:
        machine = self._cluster.login if user else self._cluster.controller
        machine.run(["scontrol", "update", f"JobId={self.job}", f"TimeLimit={minutes}"], user=user)

    def _restarts(self) -> int:
        return int(job_of(self._cluster, self.job)["Restarts"])

    def events(self, text: str) -> list[dict[str, Any]]:
        return [line for line in self._lines() if line.get("event") == text]

    def events_like(self, beginning: str) -> list[str]:
        """Texts of the events that begin like this."""
        texts = [str(line["event"]) for line in self._lines() if "event" in line]
        return [text for text in texts if text.startswith(beginning)]

    def last_step(self) -> int:
        return max((line["step"] for line in self._lines() if line["kind"] == "train"), default=0)

    def _lines(self) -> list[dict[str, Any]]:
        return list(read_metrics(self._metrics)) if self._metrics.exists() else []


@pytest.mark.timeout(3600)
def test_failure_costs(cluster: Cluster, lifecycle: Lifecycle, home: Path) -> None:
    costs: list[Cost] = []
    for interval in INTERVALS:
        endless = "train.max_steps=1000000", f"train.save_every_steps={interval}"
        training = Training(cluster, home, f"saving-{interval}", *endless)
        failures: dict[str, Callable[[], float]] = {
            "a process is killed": training.kill_process,
            f"a process hangs ({HANG_SECONDS} s)": partial(training.stop_process, interval),
            "the time limit comes": training.reach_time_limit,
            "a node is destroyed": training.destroy_node,
        }
        for failure, cause in failures.items():
            costs.append(training.cost_of(failure, cause, interval))
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
