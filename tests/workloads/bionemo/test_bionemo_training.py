"""The stage train-bionemo around entry points that stand in for BioNeMo's, in this process."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from seqlm.bionemo import convert
from seqlm.bionemo.command import conversion
from seqlm.bionemo.files import checkpoints_folder, newest_checkpoint
from seqlm.bionemo.installed import main as check_installed
from seqlm.commands import bionemo_data as data
from seqlm.commands import train_bionemo as train
from seqlm.launch.progress import bionemo_step
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.checksums import DamagedError, write_sums
from seqlm.training.command_line import RunError
from seqlm.training.data.locks import try_lock
from seqlm.training.heartbeat import BEATS_FOLDER
from seqlm.training.tracking.run_log import read_metrics
from tests.workloads.bionemo.stand_in_bionemo import CONVERTER_STATUS, KILLED_AT, make_packages
from tests.workloads.proteins.finetune.labelled_proteins import write_task_file
from tests.workloads.training.training_runs import write_run_file

CHANGES = {
    "optim": {"warmup_steps": 2, "lr": 4e-4},
    "train": {
        **{"max_steps": 30, "tokens_per_pack": 512, "tokens_per_step": 1024},
        **{"log_every_steps": 5, "save_every_steps": 10},
    },
}


@pytest.fixture
def bionemo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installed, as far as this process can see."""
    monkeypatch.syspath_prepend(make_packages(tmp_path / "packages"))
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("bionemo", "stand_in_bionemo")
    ]:
        del sys.modules[name]
    for name in [name for name in sys.modules if name.partition(".")[0] == "lightning"]:
        del sys.modules[name]


@pytest.fixture
def config(prepared: Path, tiny_model: Path, tmp_path: Path) -> RunFile:
    (tmp_path / "data").symlink_to(prepared)
    path = write_run_file(tmp_path, tmp_path / "data", tiny_model)
    settings = yaml.safe_load(path.read_text()) | CHANGES
    settings["model"] = {"size": "8M", "max_residues": 126}
    path.write_text(yaml.safe_dump(settings))
    return load_config(path)


@pytest.mark.usefixtures("bionemo")
def test_a_stopped_run_resumes(
    config: RunFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data.export_run(config)
    beats = tmp_path / "beats"
    beats.mkdir()
    monkeypatch.setenv(KILLED_AT, "13")
    with pytest.raises(SystemExit) as stopped:
        train.main(config)
    assert stopped.value.code == 143
    assert "stopped at step 13 of 30" in capsys.readouterr().err
    assert bionemo_step(config.run_dir) == 13
    monkeypatch.delenv(KILLED_AT)
    train.main(config)
    lines = list(read_metrics(config.run_dir / "metrics.jsonl"))
    trained = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in trained] == [1, 5, 10, 15, 20, 25, 30]
    assert trained[0]["loss"] == pytest.approx(2.999) and trained[0][
        "learning_rate"
    ] == pytest.approx(4e-4)
    assert {"kind": "event", "step": 13, "event": "resumed", "lost_steps": 0} in lines
    scores = [line for line in lines if line["kind"] == "eval"]
    assert [(line["step"], line["eval_loss"], line["perplexity"]) for line in scores] == [
        (step, 2.9, 18.2) for step in (10, 20, 30)
    ]
    results = json.loads((config.run_dir / "all_results.json").read_text())
    assert results["steps"] == 30 and results["framework"] == "BioNeMo 2.7.1"
    assert results["train_samples"] == 30 * 8 and results["newest_checkpoint_step"] == 30
    assert results["train_loss"] == trained[-1]["loss"] and results["eval_loss"] == 2.9
    assert "<svg" in (config.run_dir / "report.html").read_text()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"files   {config.run_dir}: ")
    assert last.endswith("config.yaml, metrics.jsonl, all_results.json, report.html")
    capsys.readouterr()
    train.main(config)
    assert "has come to step 30 already" in capsys.readouterr().out


@pytest.mark.usefixtures("bionemo")
def test_what_was_made_again_is_recorded_once(
    config: RunFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process leaves lines beyond its last checkpoint."""
    data.export_run(config)
    monkeypatch.setenv(KILLED_AT, "10")
    with pytest.raises(SystemExit):
        train.main(config)
    with (config.run_dir / "metrics.jsonl").open("a") as log:
        log.write('{"kind": "train", "step": 15, "loss": 1.0}\n')
    monkeypatch.delenv(KILLED_AT)
    train.main(config)
    lines = list(read_metrics(config.run_dir / "metrics.jsonl"))
    assert {"kind": "event", "step": 10, "event": "resumed", "lost_steps": 5} in lines
    trained = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in trained] == [1, 5, 10, 15, 20, 25, 30]
    assert trained[3]["loss"] != 1.0


@pytest.mark.usefixtures("bionemo")
def test_adapters_are_trained_from_a_converted_checkpoint(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_task_file(tmp_path, tiny_model, "binary")
    settings = yaml.safe_load(path.read_text())
    settings["lora"] = {"rank": 32, "merge": False}
    settings["optim"] |= {"warmup_steps": 0}
    settings["model"]["init_from"] = str(tmp_path / "start")
    path.write_text(yaml.safe_dump(settings))
    config = load_config(path)
    data.export_run(config)
    with pytest.raises(
        ValueError, match=r"no checkpoint of BioNeMo's format .* make convert-bionemo"
    ):
        train.main(config)
    for folder in ("context", "weights"):
        (tmp_path / "start" / folder).mkdir(parents=True)
    monkeypatch.setenv(KILLED_AT, "3")
    with pytest.raises(SystemExit):
        train.main(config)
    monkeypatch.delenv(KILLED_AT)
    # NeMo finds the frozen weights by what the adapters' file says of them, which BioNeMo leaves at None.
    train.main(config)
    assert json.loads((config.run_dir / "all_results.json").read_text())["steps"] == 8


@pytest.mark.long
@pytest.mark.usefixtures("bionemo")
def test_a_run_that_was_killed_after_its_last_save_is_ended(config: RunFile) -> None:
    """BioNeMo has nothing left to draw, and would fail at every start."""
    data.export_run(config)
    train.main(config)
    (config.run_dir / "all_results.json").unlink()
    (config.run_dir / "report.html").unlink()
    train.main(config)
    results = json.loads((config.run_dir / "all_results.json").read_text())
    assert results["steps"] == 30 and results["eval_loss"] == 2.9
    assert (config.run_dir / "report.html").exists()


@pytest.mark.usefixtures("bionemo")
def test_a_run_that_was_killed_in_its_first_save_starts(config: RunFile) -> None:
    """NeMo wants such a checkpoint removed by hand."""
    data.export_run(config)
    torn = checkpoints_folder(config.run_dir) / "epoch=0-step=9-consumed_samples=80.0-last"
    torn.mkdir(parents=True)
    torn.with_name(f"{torn.name}-unfinished").touch()
    train.main(config)
    assert json.loads((config.run_dir / "all_results.json").read_text())["steps"] == 30


@pytest.mark.usefixtures("bionemo")
def test_what_an_entry_point_refuses_is_an_error(
    config: RunFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.export_run(config)
    monkeypatch.setattr(train, "arguments", lambda *_: ["--no-such-option"])
    with pytest.raises(RunError, match="train_esm2 ended with 2"):
        train.main(config)


def test_without_bionemo_it_says_where_it_is(config: RunFile) -> None:
    for main in (train.start, train.main):
        with pytest.raises(RunError, match="make image FRAMEWORK=bionemo builds"):
            main(config)


@pytest.mark.usefixtures("bionemo")
def test_a_run_is_trained_once_at_a_time(config: RunFile) -> None:
    data.export_run(config)
    lock = try_lock(config.run_dir / "metrics.jsonl")
    with pytest.raises(RunError, match="is being trained by another process"):
        train.main(config)
    assert lock is not None
    lock.close()


@pytest.mark.usefixtures("bionemo")
def test_data_must_have_been_exported(config: RunFile) -> None:
    with pytest.raises(
        ValueError, match=r"data-bionemo does not exist or was not made from .* python -m seqlm"
    ):
        train.main(config)


def test_unfinished_checkpoints_do_not_count(tmp_path: Path) -> None:
    folder = checkpoints_folder(tmp_path)
    for name in (
        "epoch=0-step=99-consumed_samples=800.0",
        "epoch=0-step=199-consumed_samples=1600.0-last",
    ):
        (folder / name).mkdir(parents=True)
    (folder / "epoch=0-step=199-consumed_samples=1600.0-last-unfinished").touch()
    assert newest_checkpoint(tmp_path) == folder / "epoch=0-step=99-consumed_samples=800.0"
    assert bionemo_step(tmp_path) == 100 and bionemo_step(tmp_path / "other") == 0


def test_conversions_name_what_they_make(config: RunFile, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no checkpoint of BioNeMo"):
        convert.plan(config)
    made = checkpoints_folder(config.run_dir) / "epoch=0-step=9-consumed_samples=80.0-last"
    made.mkdir(parents=True)
    to_transformers = convert.Conversion(str(made), config.run_dir / "model", to_bionemo=False)
    assert convert.plan(config) == to_transformers
    assert conversion("from", Path("to"), to_bionemo=False)[0] == "convert-nemo-to-hf"
    overrides = ["bionemo.convert=from_transformers", "model.init_from=facebook/esm2_t6_8M_UR50D"]
    from_transformers = convert.plan(load_config(tmp_path / "run.yaml", overrides))
    target = Path("downloads/facebook-esm2_t6_8M_UR50D-nemo")
    assert from_transformers == convert.Conversion(
        "facebook/esm2_t6_8M_UR50D", target, to_bionemo=True
    )
    assert conversion("from", Path("to"), to_bionemo=True)[0] == "convert-hf-to-nemo"


@pytest.mark.usefixtures("bionemo")
def test_a_conversion_is_there_whole_or_not_at_all(
    config: RunFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    overrides = [
        "bionemo.convert=from_transformers",
        "model.init_from=facebook/esm2",
        f"data.downloads={tmp_path}",
    ]
    config = load_config(tmp_path / "run.yaml", overrides)
    target = tmp_path / "facebook-esm2-nemo"
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    monkeypatch.setenv(CONVERTER_STATUS, "1")
    with pytest.raises(RunError, match="BioNeMo's convert ended with 1"):
        convert.main(config)
    assert not target.exists() and not list(tmp_path.glob(".*partial*"))
    monkeypatch.delenv(CONVERTER_STATUS)
    convert.main(config)
    assert (target / "context").is_dir()
    assert f"next: model.init_from={target}" in capsys.readouterr().out
    convert.main(config)
    assert "is there already" in capsys.readouterr().out


@pytest.mark.usefixtures("bionemo")
def test_a_conversion_reads_verified_files_and_writes_checksums(
    config: RunFile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoints_folder(config.run_dir) / "epoch=0-step=9-consumed_samples=80.0-last").mkdir(
        parents=True
    )
    convert.main(config)
    assert (config.run_dir / "model/SHA256SUMS").exists()
    start = tmp_path / "start"
    start.mkdir()
    (start / "config.json").write_text("{}")
    write_sums(start)
    (start / "config.json").write_text("[]")
    overrides = [
        "bionemo.convert=from_transformers",
        f"model.init_from={start}",
        f"data.downloads={tmp_path}",
    ]
    with pytest.raises(DamagedError, match=r"start/config\.json is damaged: its checksum is wrong"):
        convert.main(load_config(tmp_path / "run.yaml", overrides))


@pytest.mark.usefixtures("bionemo")
def test_each_step_writes_a_heartbeat(
    config: RunFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        "seqlm.bionemo.recorder.beat", lambda doing, slow=False: seen.append((doing, slow))
    )
    assert BEATS_FOLDER not in os.environ
    data.export_run(config)
    train.main(config)
    assert seen.count(("training", False)) == 30 and ("evaluating", True) in seen
    assert ("making its first step", True) in seen
    assert seen[-1] == ("ending", True)


def test_the_build_reads_the_installed_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And ends where that takes something else; nothing of it is imported."""
    packages = make_packages(tmp_path / "packages")
    before = set(sys.modules)
    monkeypatch.syspath_prepend(packages)
    assert check_installed() == 0
    script = packages / "bionemo/esm2/scripts/finetune_esm2.py"
    script.write_text(script.read_text().replace("'--lora-finetune'", "'--adapters'"))
    (packages / "bionemo/esm2/model/convert.py").write_text("def convert():\n    pass\n")
    assert check_installed() == 1
    said = capsys.readouterr().err
    assert (
        "finetune_esm2 has no --lora-finetune" in said
        and "convert has no convert_hf_to_nemo" in said
    )
    script.unlink()
    assert check_installed() == 1
    assert "bionemo.esm2.scripts.finetune_esm2 is not there" in capsys.readouterr().err
    assert not [name for name in set(sys.modules) - before if name.startswith("bionemo")]
