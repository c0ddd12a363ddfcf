"""The record of a run: continued after a kill, mirrored to MLflow, indifferent to a server that is down."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqlm.training.config import TrackingConfig
from seqlm.training.tracking import mirror
from seqlm.training.tracking import run_log as tracking
from seqlm.training.tracking.run_log import RunLog, files_line, read_metrics, write_results

REPOSITORY = Path(__file__).parents[4]
CONFIG = {"name": "r", "train": {"max_steps": 20, "betas": [0.9, 0.98]}, "data": {"path": None}}


def _open(
    run_dir: Path, store: Path | str | None, *, mlflow: bool = True, **changes: Any
) -> RunLog:
    tracking = TrackingConfig(
        mlflow=mlflow, mlflow_uri=store.as_uri() if isinstance(store, Path) else store
    )
    arguments: dict[str, Any] = {
        "config": CONFIG,
        "tracking": tracking,
        "max_steps": 20,
        "enabled": True,
    }
    return RunLog(run_dir, **(arguments | changes))


def _client(store: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store.as_uri())


def _only_run(store: Path) -> Any:
    client = _client(store)
    experiment = client.get_experiment_by_name("esm2")
    (run,) = client.search_runs([experiment.experiment_id])
    return run


def _steps(run_dir: Path) -> list[int]:
    return [line["step"] for line in read_metrics(run_dir / "metrics.jsonl")]


def test_a_run_is_written_to_the_file_and_to_mlflow(tmp_path: Path) -> None:
    store = tmp_path / "mlruns"
    run_dir = tmp_path / "runs" / "r"
    log = _open(run_dir, store)
    log.train(1, loss=3.0, learning_rate=1e-4, mfu=None)
    log.train(2, loss=2.5, learning_rate=2e-4, mfu=None)
    log.evaluation(2, "validation", eval_loss=2.7, perplexity=14.9)
    log.event(2, "checkpoint")
    log.close("FINISHED")
    log.close("FINISHED")

    assert list(read_metrics(run_dir / "metrics.jsonl")) == [
        {"kind": "train", "step": 1, "loss": 3.0, "learning_rate": 1e-4, "mfu": None},
        {"kind": "train", "step": 2, "loss": 2.5, "learning_rate": 2e-4, "mfu": None},
        {"kind": "eval", "split": "validation", "step": 2, "eval_loss": 2.7, "perplexity": 14.9},
        {"kind": "event", "step": 2, "event": "checkpoint"},
    ]
    assert yaml.safe_load((run_dir / "config.yaml").read_text()) == CONFIG
    run = _only_run(store)
    assert run.info.run_name == "r"
    assert run.info.status == "FINISHED"
    assert run.data.params == {
        "name": "r",
        "train.max_steps": "20",
        "train.betas": "0.9, 0.98",
        "data.path": "None",
    }
    history = _client(store).get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(1, 3.0), (2, 2.5)]
    assert run.data.metrics["validation/perplexity"] == 14.9
    assert "train/mfu" not in run.data.metrics


def test_a_resumed_run_continues_the_same_mlflow_run(tmp_path: Path) -> None:
    store = tmp_path / "mlruns"
    run_dir = tmp_path / "r"
    first = _open(run_dir, store)
    first.train(1, loss=3.0)
    first.close("KILLED")
    assert _only_run(store).info.status == "KILLED"
    # MLflow refuses to change a parameter; a resume with more steps must pass all the same.
    second = _open(run_dir, store, config=CONFIG | {"train": {"max_steps": 40}})
    second.truncate_after(1)
    second.train(2, loss=2.0)
    second.close("FINISHED")
    run = _only_run(store)
    assert run.info.run_id == (run_dir / "mlflow_run_id").read_text().strip()
    assert [p.step for p in _client(store).get_metric_history(run.info.run_id, "train/loss")] == [
        1,
        2,
    ]
    assert run.info.status == "FINISHED"
    assert _steps(run_dir) == [1, 2]


@pytest.mark.parametrize("lost", ["deleted", "another store", "damaged id"])
def test_a_run_that_mlflow_does_not_know_is_made_anew(lost: str, tmp_path: Path) -> None:
    store = tmp_path / "mlruns"
    run_dir = tmp_path / "r"
    _open(run_dir, store).close()
    before = (run_dir / "mlflow_run_id").read_text()
    if lost == "deleted":
        _client(store).delete_run(before.strip())
    elif lost == "another store":
        store = tmp_path / "elsewhere"
    else:
        (run_dir / "mlflow_run_id").write_text("../../x")
    log = _open(run_dir, store)
    log.train(1, loss=1.0)
    log.close()
    assert (run_dir / "mlflow_run_id").read_text() not in (before, "../../x")
    run_id = (run_dir / "mlflow_run_id").read_text().strip()
    assert _client(store).get_run(run_id).data.metrics["train/loss"] == 1.0


def test_the_store_is_the_configured_else_the_environments_else_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _open(tmp_path / "a", None).close()
    assert (tmp_path / "mlruns").is_dir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "environment").as_uri())
    _open(tmp_path / "b", None).close()
    assert (tmp_path / "environment").is_dir()
    _open(tmp_path / "c", tmp_path / "configured").close()
    assert (tmp_path / "configured").is_dir()


def test_a_server_that_is_down_costs_one_warning_and_delays_no_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(mirror, "RETRY_AFTER_SECONDS", 0.01)
    import mlflow  # noqa: F401  (takes seconds, and the end of a run waits for ten)

    steps_done = threading.Event()
    orders = []
    send = mirror.MlflowMirror._send

    def send_after_the_steps(copy: mirror.MlflowMirror) -> None:
        orders.append(steps_done.wait(240))
        send(copy)

    monkeypatch.setattr(mirror.MlflowMirror, "_send", send_after_the_steps)
    log = _open(tmp_path / "r", "http://me:hunter2@127.0.0.1:9")
    for step in range(1, 21):
        log.train(step, loss=1.0)
    steps_done.set()
    log.close("FAILED")
    assert orders and all(orders)
    assert _steps(tmp_path / "r") == list(range(1, 21))
    said = capfd.readouterr().err
    assert said.count("MLflow at http://127.0.0.1:9 does not take this run") == 1
    assert "metrics.jsonl in" in said
    assert "hunter2" not in said


def test_what_waited_for_a_server_is_sent_when_it_is_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "RETRY_AFTER_SECONDS", 0.01)
    store = tmp_path / "disk" / "mlruns"
    (tmp_path / "disk").write_text("not a folder")
    log = _open(tmp_path / "r", store)
    for step in range(1, 1502):
        log.train(step, loss=1.0)
    said = ""
    deadline = time.monotonic() + 240
    while "does not take this run" not in said and time.monotonic() < deadline:
        said += capfd.readouterr().err
    (tmp_path / "disk").unlink()
    log.close()
    run_id = _only_run(store).info.run_id
    assert len(_client(store).get_metric_history(run_id, "train/loss")) == 1501
    assert "is back and up to date" in capfd.readouterr().err


def test_of_a_long_outage_the_oldest_metrics_are_dropped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "MAX_WAITING_METRICS", 10)
    monkeypatch.setattr(mirror, "RETRY_AFTER_SECONDS", 0.01)
    store = tmp_path / "disk" / "mlruns"
    (tmp_path / "disk").write_text("not a folder")
    log = _open(tmp_path / "r", store)
    for step in range(1, 100):
        log.train(step, loss=1.0)
    said = ""
    deadline = time.monotonic() + 240
    while "does not take this run" not in said and time.monotonic() < deadline:
        said += capfd.readouterr().err
    (tmp_path / "disk").unlink()
    log.close()
    history = _client(store).get_metric_history(_only_run(store).info.run_id, "train/loss")
    assert sorted(metric.step for metric in history) == list(range(90, 100))
    assert _steps(tmp_path / "r") == list(range(1, 100))


def test_a_run_without_mlflow_is_recorded_in_its_folder_alone(tmp_path: Path) -> None:
    log = _open(tmp_path / "r", tmp_path / "mlruns", mlflow=False)
    log.train(1, loss=1.0)
    log.evaluation(1, "test", eval_loss=1.0)
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["r"] and _steps(tmp_path / "r") == [1, 1]


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    log = _open(tmp_path / "r", tmp_path / "mlruns", enabled=False)
    log.train(1, loss=1.0)
    log.evaluation(1, "test", eval_loss=1.0)
    log.event(1, "x")
    log.truncate_after(0)
    log.close("FINISHED")
    assert list(tmp_path.iterdir()) == []


def test_truncating_drops_the_steps_of_a_crashed_attempt(tmp_path: Path) -> None:
    log = _open(tmp_path / "r", tmp_path / "mlruns")
    for step in (1, 2, 3, 4):
        log.train(step, loss=float(step))
    log.event(4, "checkpoint")
    assert log.truncate_after(2) == 2
    log.event(2, "resumed", lost_steps=2)
    assert log.truncate_after(2) == 0
    log.train(3, loss=30.0)
    log.close()
    lines = list(read_metrics(tmp_path / "r" / "metrics.jsonl"))
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 1),
        ("train", 2),
        ("event", 2),
        ("train", 3),
    ]
    assert lines[-1]["loss"] == 30.0 and lines[2]["lost_steps"] == 2
    assert not list((tmp_path / "r").glob(".*"))


def test_a_last_line_torn_by_a_kill_is_dropped(tmp_path: Path) -> None:
    log = _open(tmp_path / "r", tmp_path / "mlruns")
    log.train(1, loss=1.0)
    log.close()
    path = tmp_path / "r" / "metrics.jsonl"
    with path.open("a") as stream:
        stream.write('{"kind": "train", "step": 2, "lo')
    assert _steps(tmp_path / "r") == [1]
    again = _open(tmp_path / "r", tmp_path / "mlruns")
    assert again.truncate_after(1) == 0
    again.train(2, loss=2.0)
    again.close()
    assert _steps(tmp_path / "r") == [1, 2]


def test_damage_before_the_last_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\nxx\n{"kind": "train", "step": 2}\n')
    with pytest.raises(
        ValueError, match=r"metrics\.jsonl:2: got 'xx'; expected a JSON object with kind and"
    ):
        list(read_metrics(path))


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    log = _open(tmp_path / "r", tmp_path / "mlruns")
    log.train(1, loss=math.nan, grad_norm=math.inf)
    log.close()
    assert json.loads((tmp_path / "r" / "metrics.jsonl").read_text())["loss"] is None
    write_results(tmp_path / "r", {"perplexity": math.inf, "environment": {"x": [math.nan, 1]}})
    written = json.loads((tmp_path / "r" / "all_results.json").read_text())
    assert written == {"perplexity": None, "environment": {"x": [None, 1]}}


def test_plain_lines_where_stderr_is_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _open(tmp_path / "r", tmp_path / "mlruns")
    log.truncate_after(10)
    for step in range(11, 21):
        log.train(step, loss=2.5, residues_per_second=12_345.0)
    log.close()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2, "the first step, and the last"
    assert lines[0].startswith("step 11/20: loss 2.500, 12.3 k residues/s, ETA 0:00:0")
    assert lines[1].startswith("step 20/20: ")
    monkeypatch.setattr(tracking, "PLAIN_LINE_EVERY_SECONDS", 0.0)
    log = _open(tmp_path / "s", tmp_path / "mlruns", tokens="tokens")
    for step in range(1, 5):
        log.train(step, loss=2.5, residues_per_second=99.0)
    log.close()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 4 and "99 tokens/s" in lines[0]


@pytest.mark.long
def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from seqlm.training.config import TrackingConfig
from seqlm.training.tracking.run_log import RunLog
run_dir, uri = Path({str(tmp_path / "r")!r}), {(tmp_path / "mlruns").as_uri()!r}
log = RunLog(run_dir, config={{}}, tracking=TrackingConfig(mlflow_uri=uri), max_steps=20, enabled=True)
log.truncate_after(10)
for step in range(11, 21):
    log.train(step, loss=2.5, residues_per_second=12_345.0)
log.event(20, "checkpoint")
log.close("FINISHED")
"""
    terminal, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        stderr=child,
        stdout=subprocess.PIPE,
        timeout=240,
        check=True,
    )
    os.close(child)
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert done.stdout == b""
    assert "10/20" in shown
    assert "20/20" in shown
    assert "loss 2.500, 12.3 k residues/s" in shown
    assert "step 20: checkpoint" in shown


@pytest.mark.long
def test_nothing_is_sent_home() -> None:
    """A fresh interpreter, so that no other test's settings count."""
    program = (
        "import seqlm.training.tracking.run_log, mlflow.telemetry.utils as telemetry\n"
        "telemetry._IS_IN_CI_ENV_OR_TESTING = False\n"
        "assert telemetry.is_telemetry_disabled()"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")
    }
    subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, env=environment, timeout=240, check=True
    )


def test_parameters_are_flat_and_within_mlflows_limits() -> None:
    flat = mirror.params_of({"a": {"b": {"c": [1, 2]}, "d": "x" * 9000}, "e": True})
    assert flat == {"a.b.c": "1, 2", "a.d": "x" * 6000, "e": "True"}


def test_the_last_line_names_every_file_of_a_run(tmp_path: Path) -> None:
    for name in ("model", "adapter", "checkpoints", ".locks", "neuron-cache"):
        (tmp_path / name).mkdir()
    files = "answers.json predictions-validation.npz predictions-test.csv predictions-test.npz report.html"
    for name in files.split():
        (tmp_path / name).touch()
    assert files_line(tmp_path) == (
        f"files   {tmp_path}: model/, adapter/, checkpoints/, report.html, predictions-test.csv, "
        "predictions-test.npz, predictions-validation.npz, answers.json"
    )
