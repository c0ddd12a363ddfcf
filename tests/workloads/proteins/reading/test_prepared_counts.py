"""Commands that read prepared data end with the numbers of proteins, residues and labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqlm.commands import train
from seqlm.commands.evaluate import main as evaluate
from seqlm.commands.inference import run_inference
from seqlm.proteins.finetune import clustering, probes
from seqlm.proteins.scorecard import layers
from seqlm.runs.run_file import load_config
from seqlm.training.data.manifest import Manifest
from tests.workloads.proteins.finetune.labelled_proteins import write_task_file
from tests.workloads.proteins.inference.written import rows
from tests.workloads.proteins.reading.test_counts import Capture, last_lines


@pytest.mark.long
def test_prepared_data_are_counted_at_each_use(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.setattr(probes, "RESAMPLES", 30)
    monkeypatch.setattr(layers, "MAX_PROTEINS", dict.fromkeys(layers.SPLITS, 20))
    # MMseqs2 takes 10 CPU seconds for any number of proteins; tests of splits run it.
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)
    run_file = write_task_file(tmp_path, tiny_model, "regression")
    rejects = tmp_path / "data" / "rejects.csv"
    of_table = [
        f"proteins: read 160, used 145, left out 15 (15 without a label): {rejects}",
        "labels: read 145, used 145, left out 0",
    ]
    assert [row["kind"] for row in rows(rejects)] == ["no label"] * 15
    assert capsys.readouterr().err.splitlines()[-2:] == of_table
    config = load_config(run_file)
    monkeypatch.setattr(train, "on_every_device", lambda title: 0)
    with pytest.raises(SystemExit) as finished:
        train.finetune(config)
    assert finished.value.code == 0 and last_lines(capsys, 2) == of_table
    settings = [f"inference.model={tiny_model}", f"inference.output={tmp_path}/layers.csv"]
    run_inference("layers", load_config(run_file, settings))
    assert last_lines(capsys, 2) == [
        "proteins: read 145, used 60, left out 85 (85 not drawn)",
        "labels: read 60, used 60, left out 0",
    ]


@pytest.mark.long
def test_an_evaluation_counts_its_split(
    run_file: Path, prepared: Path, tiny_model: Path, capsys: Capture
) -> None:
    settings = [f"inference.model={tiny_model}", "model.max_residues=50"]
    config = load_config(run_file, settings)
    evaluate(config)
    proteins, residues = last_lines(capsys, 2)
    number = Manifest.load(prepared).splits[config.evaluate.split].records
    assert proteins == f"proteins: read {number}, used {number}, left out 0"
    assert residues.startswith("residues: read ") and residues.endswith(" too long)")
