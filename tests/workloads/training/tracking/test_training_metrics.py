"""Metrics for Prometheus agree with the log, and are served during a training if a port is given."""

from __future__ import annotations

import json
import math
import socket
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from seqlm.training.tracking.metrics_port import JOB_ID, PORT
from seqlm.training.tracking.run_log import RunLog
from seqlm.training.tracking.training_metrics import TrainingMetrics
from tests.workloads.training.training_runs import lines, train_here

STEPS = (
    "optim.warmup_steps=0",
    "train.max_steps=4",
    "train.eval_every_steps=2",
    "train.save_every_steps=2",
)
Samples = dict[tuple[str, str], float]
"""Values by the name without its prefix, and by the bound of a bucket."""


@pytest.fixture
def port() -> int:
    """A free one."""
    with socket.socket() as holder:
        holder.bind(("", 0))
        return int(holder.getsockname()[1])


@pytest.fixture
def last_scrapes(monkeypatch: pytest.MonkeyPatch, port: int) -> list[str]:
    """Last scrapes of runs that publish, after all steps and before the end of the run."""
    monkeypatch.setenv(PORT, str(port))
    monkeypatch.setenv(JOB_ID, "4711")
    found: list[str] = []
    evaluation = RunLog.evaluation

    def then_scrape(log: RunLog, step: int, *arguments: str, **values: float | None) -> None:
        evaluation(log, step, *arguments, **values)  # type: ignore[arg-type]
        found.append(scrape(port))

    monkeypatch.setattr(RunLog, "evaluation", then_scrape)
    return found


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def samples(text: str, labels: Mapping[str, str]) -> Samples:
    """All of them, which have to have the labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            bound = sample.labels.pop("le", "")
            assert sample.labels == labels, sample
            found[sample.name.removeprefix("esm2_training_"), bound] = sample.value
    return found


def test_a_training_publishes_what_it_logs(
    run_file: Path, last_scrapes: list[str], port: int
) -> None:
    train_here(run_file, *STEPS)
    # Of the last of three evaluations, on the test split.
    found = samples(last_scrapes[-1], {"run": "run", "job_id": "4711"})
    run_dir = run_file.parent / "runs/run"
    logged = lines(run_dir, "train")[-1]
    evaluated = lines(run_dir, "eval")
    results = json.loads((run_dir / "all_results.json").read_text())

    def value(name: str, bound: str = "") -> float:
        return found[name, bound]

    assert (value("step"), value("max_steps"), value("processes")) == (4, 4, 1)
    same_in_log = {
        "gradient_norm": "grad_norm",
        "run_residues": "residues",
        "run_seconds": "seconds",
    }
    for name in ("loss", "learning_rate", "epoch", "peak_memory_bytes", *same_in_log):
        assert value(name) == logged[same_in_log.get(name, name)], name
    assert value("validation_loss") == results["eval_loss"] == evaluated[1]["eval_loss"]
    assert value("residues_total") == logged["residues"]
    assert value("residues_total") / value("tokens_total") == pytest.approx(results["fill"])
    assert value("model_flops_total") == pytest.approx(results["total_flos"])
    assert value("step_seconds_count") == value("step_seconds_bucket", "+Inf") == 4
    assert value("data_wait_seconds_count") == 4
    assert 0 < value("step_seconds_sum") + value("data_wait_seconds_sum") < logged["seconds"]
    assert value("checkpoint_step") == 4 and value("checkpoint_write_seconds") > 0
    assert value("checkpoint_stall_seconds_sum") > 0
    assert value("evaluation_seconds_count") == 2 and value("lost_steps_total") == 0
    # A CPU has no peak for an MFU.
    assert ("peak_flops_per_second", "") not in found
    assert all(math.isfinite(number) for number in found.values())
    # A counter begins again when the run resumes; what the run has done does not.
    train_here(run_file, "optim.warmup_steps=0", "train.max_steps=5")
    found = samples(last_scrapes[-1], {"run": "run", "job_id": "4711"})
    assert value("step") == 5 and value("step_seconds_count") == 1
    assert (
        0
        < value("residues_total")
        < value("run_residues")
        == lines(run_dir, "train")[-1]["residues"]
    )
    with pytest.raises(OSError, match="refused"):
        scrape(port)


@pytest.fixture
def metrics() -> TrainingMetrics:
    return TrainingMetrics(
        run="run",
        max_steps=9,
        processes=16,
        peak_flops=16e15,
        num_flops=lambda tokens, pairs: tokens + pairs,
    )


def test_gpus_have_a_peak(metrics: TrainingMetrics, port: int) -> None:
    metrics.started_at(3, lost_steps=2)
    with metrics.served(str(port)):
        found = samples(scrape(port), {"run": "run", "job_id": ""})
    assert found["peak_flops_per_second", ""] == 16e15
    assert (found["step", ""], found["lost_steps_total", ""]) == (3, 2)


@pytest.mark.parametrize("named", ["{port}", "metrics", "70000"])
def test_a_port_that_cannot_be_had_costs_a_warning(
    metrics: TrainingMetrics, port: int, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    named = named.format(port=port)
    with socket.socket() as other:
        other.bind(("", port))
        other.listen()
        with metrics.served(named):
            pass
    assert (
        f"warning: this training's metrics are not published: {PORT} is '{named}'"
        in capsys.readouterr().err
    )


def test_without_the_package_metrics_are_off_and_asking_for_them_costs_a_warning(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # which makes importing it fail
    metrics = TrainingMetrics(
        run="run", max_steps=9, processes=1, peak_flops=None, num_flops=lambda tokens, pairs: 1
    )
    with metrics.served(None), metrics.timing("step"), metrics.timing("evaluation"):
        metrics.started_at(3, lost_steps=2)
        metrics.logged({"loss": 1.0})
        metrics.evaluated(1.0)
        metrics.saved(3, seconds=1.0)
    assert capsys.readouterr().err == ""
    with metrics.served(str(port)):
        pass
    assert (
        f"{PORT} is '{port}' (the package prometheus-client is missing)" in capsys.readouterr().err
    )


def test_without_a_port_no_server_listens(
    metrics: TrainingMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prometheus_client.start_http_server", pytest.fail)
    with metrics.served(None):
        pass
