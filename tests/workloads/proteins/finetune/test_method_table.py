"""The method table: five real runs that differ in nothing but their method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqlm.commands.kinds import prepare as prepare_run
from seqlm.commands.train import train
from seqlm.proteins.finetune import method_table
from seqlm.proteins.finetune.method_table import METHODS, main, method_run
from seqlm.runs.run_file import RunFile, load_config
from tests.workloads.proteins.finetune.test_labelled_table import write_csv
from tests.workloads.training.training_runs import figures_not_drawn


def membrane_run(folder: Path, model: Path) -> RunFile:
    """A few steps on proteins whose class shows in their composition."""
    rows = [
        (
            f"p{n}",
            "M" + ("LIV" if n % 2 else "DEK") * (5 + n % 7) + "ACDEFGHIKL"[n // 10] * (n % 10 + 1),
            n % 5,
            n % 2,
        )
        for n in range(100)
    ]
    table = write_csv(
        folder / "t.csv",
        [tuple(map(str, row)) for row in rows],
        ("id", "sequence", "fold", "hydrophobic"),
    )
    file = folder / "table.yaml"
    file.write_text(
        f"""
name: table
runs: {folder}/runs
model: {{init_from: {model}, max_residues: 62}}
data: {{path: {folder}/prepared}}
optim: {{lr: 1e-3, warmup_steps: 2}}
train: {{max_steps: 6, tokens_per_pack: 128, tokens_per_step: 512, precision: fp32}}
tracking: {{mlflow: false}}
task:
  kind: binary
  table: [{table}]
  label_columns: [hydrophobic]
  split: {{column: fold, validation: ["3"], test: ["4"]}}
"""
    )
    return load_config(file)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[RunFile]:
    """A row's run, in this process: those that the launcher starts would each import torch anew."""
    seen: list[RunFile] = []

    def launch(file: Path) -> int:
        config = load_config(file)
        seen.append(config)
        prepare_run(config)
        with figures_not_drawn():
            train(config)
        return 0

    monkeypatch.setattr(method_table, "launch", launch)
    monkeypatch.setattr(method_table, "processes_and_threads", lambda: (1, 1))
    return seen


@pytest.mark.long
def test_the_table_has_a_row_for_each_method(
    tmp_path: Path,
    tiny_model: Path,
    in_this_process: list[RunFile],
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = membrane_run(tmp_path, tiny_model)
    main(config)
    assert [run.train.tokens_per_pack for run in in_this_process] == [512, 128, 512, 512, 128]
    assert {run.train.tokens_per_step for run in in_this_process} == {512}
    assert [run.train.activation_checkpointing for run in in_this_process] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert [run.lora is not None for run in in_this_process] == [False, False, False, True, True]
    assert len({run.run_dir for run in in_this_process}) == 5
    rows = json.loads((config.run_dir / "methods.json").read_text())["rows"]
    assert [line["trained_parameters"] for line in rows[:3]] == [rows[0]["trained_parameters"]] * 3
    assert (
        rows[3]["trained_parameters"]
        == rows[4]["trained_parameters"]
        < rows[0]["trained_parameters"]
    )
    # Recomputing activations changes nothing but time and memory.
    assert rows[2]["accuracy"] == rows[0]["accuracy"] and rows[2]["mcc"] == rows[0]["mcc"]
    text = (config.run_dir / "methods.md").read_text()
    assert "| base: all weights |" in text and "| all methods together |" in text
    assert f"{rows[4]['accuracy']:.3f}" in text and text in capsys.readouterr().out


def test_lora_keeps_what_the_configuration_says_of_it(tmp_path: Path, tiny_model: Path) -> None:
    file = tmp_path / "table.yaml"
    membrane_run(tmp_path, tiny_model)
    config = load_config(file, ["lora.rank=3"])
    assert [
        (run := method_run(config, method, 1)).lora and run.lora.rank for method in METHODS
    ] == [*(None, None, None, 3, 3)]


def test_every_device_has_a_micro_batch_of_its_own(tmp_path: Path, tiny_model: Path) -> None:
    config = membrane_run(tmp_path, tiny_model)
    packs = [method_run(config, method, 2).train.tokens_per_pack for method in METHODS]
    assert packs == [256, 128, 256, 256, 128]


def test_rows_that_would_not_differ_are_refused(tmp_path: Path, tiny_model: Path) -> None:
    membrane_run(tmp_path, tiny_model)
    with pytest.raises(
        ValueError, match=r"tokens_per_step: got 512; for .* give a multiple of \d+"
    ):
        main(load_config(tmp_path / "table.yaml", ["train.tokens_per_pack=512"]))
    with pytest.raises(ValueError, match="task: is missing"):
        main(load_config(tmp_path / "table.yaml", ["task=null"]))
