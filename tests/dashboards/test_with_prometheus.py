"""A real Prometheus asks a training that runs, and answers what dashboards ask."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

import pytest

from tests.dashboards import exporters
from tests.dashboards.prometheus_run import free_port, lacking, running, send_by_efa
from tests.dashboards.test_dashboards import SCHEDULERS, expressions
from tests.lifecycle.node import StandIns
from tests.lifecycle.slurm_answers import answer_for_slurm
from tests.workloads.esm2.conftest import prepared, run_file, tiny_config, tiny_model
from tests.workloads.esm2.training_runs import train_here
from workloads.esm2.metrics_port import JOB_ID, PORT
from workloads.esm2.tracking import RunLog

__all__ = ["prepared", "run_file", "tiny_config", "tiny_model"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        bool(lacking()),
        reason=f"{', '.join(lacking())} is not installed: apt-get install {' '.join(lacking())}",
    ),
]
SECONDS = 5
"""Of training that a rate is taken over."""
WINDOW = f"{SECONDS + 25}s"


def test_every_query_is_answered_with_data(
    run_file: Path, tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv(PORT, str(port))
    monkeypatch.setenv(JOB_ID, exporters.JOB_ID)
    # As on GPUs whose data sheet is known.
    monkeypatch.setattr("workloads.esm2.train.peak_flops", lambda device: 1e12)
    answer_for_slurm(stand_ins, tmp_path)
    moments: list[float] = []
    evaluation = RunLog.evaluation

    def linger(log: RunLog, step: int, *arguments: str, **values: float | None) -> None:
        """Each evaluation is as long as some scrapes."""
        evaluation(log, step, *arguments, **values)  # type: ignore[arg-type]
        if len(moments) < 2:
            send_by_efa(tmp_path, step)
            time.sleep(SECONDS)
            moments.append(time.time())

    monkeypatch.setattr(RunLog, "evaluation", linger)
    with running(tmp_path, port, exporters.slurm) as prometheus:
        train_here(
            run_file,
            "optim.warmup_steps=0",
            "train.max_steps=4",
            "train.eval_every_steps=2",
            "train.save_every_steps=1",
        )
        # While it scored what it had learnt: the process has ended since.
        now = moments[1]
        silent = []
        for scheduler in SCHEDULERS:
            for uid, found in expressions(scheduler).items():
                for expression in found:
                    text = re.sub(r"\$__(rate_interval|range)", WINDOW, expression)
                    text = re.sub(r"\$\w+", ".*", text)
                    answer = prometheus.query(text, now)
                    numbers = [float(sample["value"][1]) for sample in answer]
                    if not any(map(math.isfinite, numbers)):
                        silent.append(f"{uid}: {text} gives {numbers}")
        assert silent == []
        [steps] = prometheus.query('esm2_training_step{job="training"}', now)
        [pods] = prometheus.query('esm2_training_step{job="pods"}', now)
        [speed] = prometheus.query(f'rate(esm2_training_residues_total{{job="training"}}[{WINDOW}])', now)
    labels = {"run": exporters.RUN, "job_id": exporters.JOB_ID}
    assert steps["metric"].items() >= {**labels, "group": "workers", "role": "worker"}.items()
    of_pod = {"namespace": "hyperpod-training", "pod": "4711-pods-0", "instance": "hyperpod-i-1"}
    assert pods["metric"].items() >= {**labels, **of_pod}.items()
    assert float(steps["value"][1]) == 4 and float(speed["value"][1]) > 0
