"""Layers are compared on the right features, and the one that validation prefers is named."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from seqlm.commands.inference import run_inference
from seqlm.proteins.finetune import clustering, probes
from seqlm.proteins.finetune.labelled import LabelledSplit
from seqlm.proteins.finetune.probes import Examples, fit_probe
from seqlm.proteins.finetune.scores import scores
from seqlm.proteins.scorecard import layers
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.processes import Processes, processes
from tests.workloads.proteins.finetune.labelled_proteins import write_task_file


@pytest.fixture(scope="module")
def here() -> Iterator[Processes]:
    with processes() as found:
        yield found


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "RESAMPLES", 30)
    monkeypatch.setattr(layers, "MAX_PROTEINS", dict.fromkeys(layers.SPLITS, 60))


def configured(folder: Path, model: Path, kind: str) -> RunFile:
    overrides = [
        "train.precision=fp32",
        f"inference.output={folder}/layers.csv",
        f"inference.model={model}",
    ]
    return load_config(write_task_file(folder, model, kind), overrides)


def compared(config: RunFile, here: Processes) -> list[dict[str, str]]:
    layers.layers(config, here)
    with Path(config.inference.output or "").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.long
def test_every_layer_and_pooling_is_scored(
    tiny_model: Path,
    here: Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # MMseqs2 takes 10 CPU seconds for any number of proteins; tests of splits run it.
    monkeypatch.setattr(clustering, "find_mmseqs", lambda: None)
    config = configured(tmp_path, tiny_model, "multiclass")
    rows = compared(config, here)
    assert [(row["pooling"], row["layer"]) for row in rows] == [
        (pooling, str(layer)) for pooling in ("mean", "max", "std", "cls") for layer in range(3)
    ]
    # The mean over the embedding layer is a composition, which tells these proteins apart.
    found = {(row["pooling"], int(row["layer"])): row for row in rows}
    assert float(found["mean", 0]["validation"]) > float(found["cls", 0]["validation"])
    for row in rows:
        low, value, high = (float(row[key]) for key in ("test_low", "test", "test_high"))
        assert low <= value <= high
        inside = float(row["difference_low"]) <= 0 <= float(row["difference_high"])
        assert row["may_be_chance"] == str(inside)
    best = max(rows, key=lambda row: float(row["validation"]))
    printed = capsys.readouterr().out
    assert (
        f"validation prefers layer {best['layer']}, pooling {best['pooling']}: test accuracy"
        in printed
    )
    assert (
        "test clusters: " in printed
        and "MinHash" in printed
        and (tmp_path / "layers.png").stat().st_size > 5000
    )
    # One cell, by transformers.
    plain = AutoModelForMaskedLM.from_pretrained(tiny_model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    def examples(name: str) -> Examples:
        split = LabelledSplit(config.data.path, name)  # type: ignore[arg-type]
        units = np.sort(np.random.default_rng(0).permutation(split.num_units)[:60])
        features = []
        for unit in units:
            ids = split.token_ids(split.draw(int(unit), 1, 0, 0)[0][0]).tolist()
            tokens = torch.tensor([[tokenizer.cls_token_id, *ids, tokenizer.eos_token_id]])
            with torch.no_grad():
                hidden = plain.base_model(tokens, output_hidden_states=True).hidden_states[1][
                    0, 1:-1
                ]
            features.append(hidden.mean(dim=0).numpy().astype(np.float16).astype(np.float32))
        return Examples(np.stack(features), split.labels(units))

    train, validation, test = (examples(name) for name in ("train", "validation", "test"))
    schema = LabelledSplit(config.data.path, "train").schema
    probe = fit_probe(schema, train, validation, layers.STRENGTHS)
    expected = scores(schema, test.labels, probe.outputs(test.features))["accuracy"]
    assert float(found["mean", 1]["test"]) == pytest.approx(expected, abs=0.04)  # one protein of 32
    with pytest.raises(ValueError, match=r"layers\.csv exists; name another inference\.output"):
        layers.layers(config, here)


def test_residues_have_layers_without_pooling(
    tiny_model: Path, here: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path, tiny_model, "residue")
    monkeypatch.setattr(layers, "similarity_clusters", lambda of: ([one.id for one in of], "id"))
    rows = compared(config, here)
    assert [(row["pooling"], row["layer"]) for row in rows] == [
        ("none", str(layer)) for layer in range(3)
    ]
    # The label of a residue is a function of its letter, which the embedding layer shows.
    assert float(rows[0]["test"]) > 0.9


def test_a_run_file_without_a_task_or_a_model_is_refused(run_file: Path) -> None:
    with pytest.raises(ValueError, match=r"task: layers needs a labelled table"):
        run_inference("layers", load_config(run_file))
