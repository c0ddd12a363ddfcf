"""A real Prometheus asks a training that runs, and answers what dashboards ask."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any

import pytest

from seqlm.training.tracking.metrics_port import JOB_ID, PORT
from seqlm.training.tracking.run_log import RunLog
from tests.lifecycle.node import StandIns
from tests.lifecycle.slurm_answers import answer_for_slurm
from tests.monitoring import exporters
from tests.monitoring.prometheus_run import (
    Prometheus,
    free_port,
    lacking,
    running,
    send_by_efa,
    wait_until,
)
from tests.monitoring.test_dashboards import SCHEDULERS, expressions
from tests.workloads.conftest import family, prepared, run_file, tiny_config, tiny_model
from tests.workloads.training.training_runs import train_here

__all__ = ["family", "prepared", "run_file", "tiny_config", "tiny_model"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        bool(lacking()),
        reason=f"{', '.join(lacking())} is not installed: apt-get install {' '.join(lacking())}",
    ),
]
OF_SEVERAL_PROCESSES = "esm2_training_slowest_pass_ratio"
"""Metric that a training of one process lacks."""
WINDOW = "5m"
"""Longer than the training: a rate is taken over all of it."""
SECONDS_TO_ANSWER = 60
Sample = dict[str, Any]


def test_every_query_is_answered_with_data(
    run_file: Path, tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv(PORT, str(port))
    monkeypatch.setenv(JOB_ID, exporters.JOB_ID)
    # As on GPUs whose data sheet is known.
    monkeypatch.setattr("seqlm.training.train.peak_flops", lambda device: 1e12)
    answer_for_slurm(stand_ins, tmp_path)
    evaluation = RunLog.evaluation
    began = time.monotonic()
    silent: list[str] = []
    found: list[Sample] = []

    def linger(log: RunLog, step: int, *arguments: str, **values: float | None) -> None:
        """Evaluate until Prometheus has what a rate needs: figures of one moment, then of a later one."""
        evaluation(log, step, *arguments, **values)  # type: ignore[arg-type]
        send_by_efa(tmp_path, time.monotonic() - began)
        wait_until(lambda: scraped(step), f"step {step} is not in Prometheus")
        deadline = time.monotonic() + SECONDS_TO_ANSWER
        while step == 4:
            # On a busy machine, scrapes of the node may have failed until now: it needs one more figure.
            send_by_efa(tmp_path, time.monotonic() - began)
            silent[:] = _silent_queries(prometheus)
            if not silent or time.monotonic() > deadline:
                found[:] = scraped(step)
                break

    def scraped(step: int) -> list[Sample]:
        """The step as both jobs that ask the training have it, once they do."""
        samples = prometheus.query(
            f'esm2_training_step{{job=~"training|pods"}} == {step}', time.time()
        )
        return samples if len(samples) == 2 else []

    monkeypatch.setattr(RunLog, "evaluation", linger)
    with running(tmp_path, port, exporters.slurm) as prometheus:
        train_here(
            run_file,
            "optim.warmup_steps=0",
            "train.max_steps=4",
            "train.eval_every_steps=2",
            "train.save_every_steps=1",
        )
    assert silent == []
    of_job = {sample["metric"]["job"]: sample["metric"].items() for sample in found}
    labels = {"run": exporters.RUN, "job_id": exporters.JOB_ID}
    assert of_job["training"] >= {**labels, "group": "workers", "role": "worker"}.items()
    of_pod = {"namespace": "hyperpod-training", "pod": "4711-pods-0", "instance": "hyperpod-i-1"}
    assert of_job["pods"] >= {**labels, **of_pod}.items()


def _silent_queries(prometheus: Prometheus) -> list[str]:
    """Return the dashboards' queries that no finite number answers, and the speed's if it is not positive.

    The training has one process.
    """
    silent = []
    speed = f'rate(esm2_training_residues_total{{job="training"}}[{WINDOW}]) > 0'
    if not prometheus.query(speed, time.time()):
        silent.append(f"{speed} gives nothing")
    for scheduler in SCHEDULERS:
        for uid, found in expressions(scheduler).items():
            for expression in found:
                if OF_SEVERAL_PROCESSES in expression:
                    continue
                text = re.sub(r"\$__(rate_interval|range)", WINDOW, expression)
                text = re.sub(r"\$\w+", ".*", text)
                numbers = [
                    float(sample["value"][1]) for sample in prometheus.query(text, time.time())
                ]
                if not any(map(math.isfinite, numbers)):
                    silent.append(f"{uid}: {text} gives {numbers}")
    return silent
