"""Runs that are copied to Weights & Biases: offline files, resumed runs, missing packages and servers."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqlm.runs.run_file import load_config
from seqlm.training.config import TrackingConfig
from seqlm.training.tracking.run_log import RunLog, read_metrics
from tests.workloads.training.training_runs import train_here

REPOSITORY = Path(__file__).parents[4]
KEY = "0123456789abcdef" * 2 + "01234567"
FEW = ("train.max_steps=3", "optim.warmup_steps=1", "tracking.wandb=proteins")
HEADER_BYTES = 7
BLOCK_BYTES = 32768
RECORD_HEADER_BYTES = 7


def records(path: Path) -> Iterator[Any]:
    """W&B's records of a run: messages in a log of LevelDB's format, after a header of W&B's own."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    at = HEADER_BYTES
    message = b""
    assert data[:4] == b":W&B"
    while at < len(data):
        if BLOCK_BYTES - at % BLOCK_BYTES < RECORD_HEADER_BYTES:
            at += BLOCK_BYTES - at % BLOCK_BYTES  # filled up with zeros
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        message += data[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]
        at += RECORD_HEADER_BYTES + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(message)
            yield record
            message = b""


def offline_runs(run_dir: Path) -> list[list[Any]]:
    """Records of each attempt; W&B's process has written them all when it ends, as at the process's exit."""
    import wandb

    wandb.teardown()
    return [list(records(path)) for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb"))]


def history(run: list[Any]) -> list[dict[str, float]]:
    found = []
    for record in run:
        if record.HasField("history"):
            row = {
                (i.key or ".".join(i.nested_key)): json.loads(i.value_json)
                for i in record.history.item
            }
            found.append({name: value for name, value in row.items() if not name.startswith("_")})
    return found


def run_record(run: list[Any]) -> Any:
    return next(record.run for record in run if record.HasField("run"))


def configuration(run: list[Any]) -> dict[str, Any]:
    return {
        item.key: json.loads(item.value_json) for item in run_record(run).config.update if item.key
    }


def mirrored(run_dir: Path) -> list[dict[str, float]]:
    """The rows that metrics.jsonl makes."""
    rows = []
    for line in read_metrics(run_dir / "metrics.jsonl"):
        if line["kind"] != "event":
            kind = line.pop("split", "train")
            del line["kind"]
            step = line.pop("step")
            values = {f"{kind}/{name}": value for name, value in line.items() if value is not None}
            rows.append({"step": step, **values})
    return rows


def by_step(rows: list[dict[str, float]]) -> dict[float, dict[str, float]]:
    merged: dict[float, dict[str, float]] = {}
    for row in rows:
        merged.setdefault(row["step"], {}).update(row)
    return merged


@pytest.fixture(autouse=True)
def no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    real_exit = sys.exit
    real_hook = sys.excepthook
    yield
    if wandb := sys.modules.get("wandb"):
        wandb.teardown()
    sys.exit = real_exit
    sys.excepthook = real_hook


def _open(run_dir: Path, **changes: Any) -> RunLog:
    arguments: dict[str, Any] = {
        "config": {"name": "r", "optim": {"lr": 1e-3, "betas": [0.9, 0.98]}, "x": None},
        **{
            "max_steps": 20,
            "enabled": True,
            "tracking": TrackingConfig(mlflow=False, wandb="proteins"),
        },
    }
    return RunLog(run_dir, **(arguments | changes))


def test_a_training_is_copied_offline_with_its_configuration(
    run_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    train_here(run_file, *FEW, "train.eval_every_steps=2")
    run_dir = tmp_path / "runs/run"
    (run,) = offline_runs(run_dir)
    assert by_step(history(run)) == by_step(mirrored(run_dir))
    assert [*by_step(history(run))] == [1, 2, 3]
    config = configuration(run)
    del config["_wandb"]
    assert config == yaml.safe_load((run_dir / "config.yaml").read_text())
    about = run_record(run)
    assert (about.project, about.display_name) == ("proteins", "run")
    assert about.run_id == (run_dir / "wandb_run_id").read_text().strip()
    assert [record.exit.exit_code for record in run if record.HasField("exit")] == [0]
    said = capfd.readouterr()
    assert "W&B" not in said.err + said.out and "wandb" not in said.err + said.out


def test_a_resumed_run_continues_the_same_run_and_repeats_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_dir = tmp_path / "r"
    first = _open(run_dir)
    for step in (1, 2, 3):
        first.train(step, loss=float(step))
    first.close("KILLED")
    second = _open(run_dir)
    second.truncate_after(2)
    second.train(3, loss=30.0)
    second.close()
    attempts = offline_runs(run_dir)
    assert len({run_record(run).run_id for run in attempts}) == 1
    assert [[(row["step"], row["train/loss"]) for row in history(run)] for run in attempts] == [
        [(1, 1.0), (2, 2.0), (3, 3.0)],
        [(3, 30.0)],
    ]
    assert [r.exit.exit_code for run in attempts for r in run if r.HasField("exit")] == [255, 0]


@pytest.mark.parametrize("lack", ["server", "account"])
def test_without_server_or_account_one_warning_says_how_to_send_the_run(
    lack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from seqlm.training.tracking import mirror

    monkeypatch.setattr(
        mirror,
        "WANDB_SETTINGS",
        {**mirror.WANDB_SETTINGS, "init_timeout": 3.0, "finish_timeout": 20.0},
    )
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    if lack == "server":
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    run_dir = tmp_path / "r"
    log = _open(run_dir, config={"tracking": {"mlflow_uri": "http://me:hunter2@127.0.0.1"}})
    log.train(1, loss=3.0)
    log.close()
    said = capfd.readouterr().err
    assert said.count("W&B") == 1 and "W&B project proteins cannot be reached (" in said
    assert ("No API key configured" if lack == "account" else "CommError: ") in said
    assert f"cd {run_dir} && wandb sync" in said and "Traceback" not in said
    (run,) = offline_runs(run_dir)
    assert history(run) == [{"step": 1, "train/loss": 3.0}]
    assert configuration(run)["tracking"] == {"mlflow_uri": "http://127.0.0.1"}
    written = [path.read_bytes() for path in run_dir.glob("wandb/**/*") if path.is_file()]
    assert len(written) > 3
    assert not any(KEY.encode() in data or b"hunter2" in data for data in written)
    assert KEY not in said


def test_a_missing_package_costs_one_warning(
    run_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    train_here(run_file, *FEW)
    said = capfd.readouterr().err
    assert said.count("W&B") == 1 and "W&B project proteins is off: a package is missing" in said
    assert (tmp_path / "runs/run/all_results.json").exists()


def test_a_project_with_its_team_is_refused(run_file: Path) -> None:
    with pytest.raises(ValueError, match=r"tracking\.wandb: got 'lab/proteins'.*WANDB_ENTITY"):
        load_config(run_file, ["tracking.wandb=lab/proteins"])


@pytest.mark.long
def test_a_process_ends_soon_with_its_own_code_if_the_server_never_answers(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from seqlm.runs.run_file import load_config
from seqlm.training.config import TrackingConfig
from seqlm.training.tracking.run_log import RunLog
tracking = TrackingConfig(mlflow=False, wandb="proteins")
log = RunLog(Path({str(tmp_path / "r")!r}), config={{}}, tracking=tracking, max_steps=2, enabled=True)
log.train(1, loss=1.0)
log.close("FAILED")
sys.exit(7)
"""
    environment = {
        "WANDB_BASE_URL": "http://127.0.0.1:9",
        "WANDB_API_KEY": KEY,
        "PATH": "/usr/bin:/bin",
    }
    environment["HOME"] = str(tmp_path)
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        timeout=240,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "")
    assert KEY not in done.stderr and done.stderr.count("W&B") == 1
