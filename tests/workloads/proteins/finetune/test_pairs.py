"""Fine-tuning on records with several chains, such as heavy and light chains of antibodies."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from seqlm.proteins.alphabet import STANDARD_RESIDUES, decode, encode
from seqlm.proteins.finetune.labelled import LabelledSplit, SampledSplit
from seqlm.proteins.finetune.prediction_file import predictions_file
from seqlm.proteins.finetune.prepare import is_prepared, prepare_table
from seqlm.proteins.inference.engine import EMBEDDING, RESIDUE_EMBEDDINGS, Engine
from seqlm.proteins.inference.predict import predict
from seqlm.proteins.model.pretrained import load_model
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.processes import processes
from tests.workloads.proteins.inference.written import rows
from tests.workloads.training.training_runs import train_here, write_run_file

SINGLE = [
    ("P1", "MKTA", "1", "train"),
    ("P2", "MKTC", "2", "validation"),
    ("P3", "MKTD", "3", "test"),
]
"""Labelled proteins of one chain."""
LINKER = "G" * 25
FOLDS = ("train", "train", "train", "test", "validation")
PAIRS = [(f"P{n}", "EVQLV" + "ACDE"[n % 4] * (n % 7 + 1), "DIQ" + "KRST"[n % 4]) for n in range(20)]


def write(path: Path, header: tuple[str, ...], table: list[tuple[Any, ...]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *table])
    return path


def columns(folder: Path) -> Path:
    """Write the pairs with a column for each chain."""
    labelled = [(*pair, n * 0.5, FOLDS[n % 5]) for n, pair in enumerate(PAIRS)]
    return write(folder / "pairs.csv", ("id", "heavy", "light", "y", "fold"), labelled)


def run_of(folder: Path, table: Path, **task: Any) -> RunFile:
    fields = {"kind": "regression", "table": [str(table)], "label_columns": ["y"], **task}
    path = folder / "run.yaml"
    settings = {
        "name": "run",
        "runs": str(folder / "runs"),
        "data": {"path": str(folder / "data"), "downloads": str(folder / "downloads")},
        "task": {"split": {"column": "fold"}, **fields},
    }
    path.write_text(yaml.safe_dump(settings))
    return load_config(path)


def prepared(folder: Path) -> dict[str, str]:
    """Return the sequences of all splits by id."""
    found = {}
    for name in ("train", "validation", "test"):
        split = LabelledSplit(folder / "data", name)  # type: ignore[arg-type]
        places, _ = split.draw(0, split.num_units, 0, 0)
        ids = split.ids(np.arange(split.num_units))
        found |= {
            one: decode(split.token_ids(place)) for one, place in zip(ids, places, strict=True)
        }
    return found


@pytest.mark.parametrize(("chains", "between"), [("linker", LINKER), ("joined", "")])
def test_pairs_are_prepared_as_one_protein(chains: str, between: str, tmp_path: Path) -> None:
    (folder := tmp_path / "columns").mkdir()
    named = {"sequence_columns": ["heavy", "light"], "chains": chains}
    config = run_of(folder, columns(folder), **named)
    prepare_table(config)
    expected = {name: heavy + between + light for name, heavy, light in PAIRS}
    assert prepared(folder) == expected
    prepare_table(config)  # the same settings find the prepared data
    other = "joined" if chains == "linker" else "linker"
    with pytest.raises(ValueError, match=r"task\.chains"):
        prepare_table(run_of(folder, folder / "pairs.csv", **{**named, "chains": other}))

    (cells := tmp_path / "cells").mkdir()
    labelled = [
        (name, f"{heavy}|{light}", n, "train") for n, (name, heavy, light) in enumerate(PAIRS)
    ]
    labelled[3] = (*labelled[3][:3], "test")
    labelled[4] = (*labelled[4][:3], "validation")
    table = write(cells / "pairs.csv", ("id", "sequence", "y", "fold"), labelled)
    prepare_table(run_of(cells, table, chains=chains))
    assert prepared(cells) == expected


def test_pairs_need_a_choice_and_labels_of_whole_records(tmp_path: Path) -> None:
    table = write(
        tmp_path / "t.csv", ("id", "sequence", "y", "fold"), [("P1", "MKT|TA", "1", "train")]
    )
    with pytest.raises(
        ValueError, match=r"2 chains \('A', 'B'\); set task\.chains to linker or joined"
    ):
        prepare_table(run_of(tmp_path, table))
    with pytest.raises(ValueError, match="labels of residues belong to one"):
        prepare_table(run_of(tmp_path, table, kind="residue"))
    missing = write(tmp_path / "u.csv", ("id", "heavy", "light", "y"), [("P1", "MKT", "", "1")])
    fields = {"sequence_columns": ["heavy", "light"], "chains": "linker", "split": {}}
    with pytest.raises(ValueError, match="chain 'light' has no residues"):
        prepare_table(run_of(tmp_path, missing, **fields))
    fields["sequence_columns"] = ["heavy", "kappa"]
    with pytest.raises(ValueError, match="kappa"):
        prepare_table(run_of(tmp_path, missing, **fields))


def test_probes_leave_the_linkers_out(tiny_model: Path, tmp_path: Path) -> None:
    fields = {"sequence_columns": ["heavy", "light"], "chains": "linker"}
    prepare_table(run_of(tmp_path, columns(tmp_path), **fields))
    engine = Engine(load_model(str(tiny_model)), device=torch.device("cpu"), dtype=torch.float32)

    def embedded(proteins: list[np.ndarray], **spans: Any) -> list[np.ndarray]:
        return engine.run(proteins, EMBEDDING, **spans)

    part = SampledSplit(tmp_path / "data", "test", 10)
    found = part.features(embedded)
    by_id = {name: (heavy, light) for name, heavy, light in PAIRS}
    for name, features in zip(part.ids, found, strict=True):
        heavy, light = by_id[name]
        [whole] = engine.run([encode(heavy + LINKER + light)], RESIDUE_EMBEDDINGS)
        residues = [*range(len(heavy)), *range(len(heavy) + 25, len(whole))]
        np.testing.assert_allclose(features, whole[residues].mean(axis=0), atol=1e-5)


@pytest.mark.long
def test_a_model_of_pairs_is_trained_and_predicts_pairs(tiny_model: Path, tmp_path: Path) -> None:
    path = write_run_file(tmp_path, tmp_path / "data", tiny_model)
    settings = yaml.safe_load(path.read_text())
    rng = np.random.default_rng(3)
    residues = list(STANDARD_RESIDUES)
    table = []
    for number in range(60):
        heavy, light = ("".join(rng.choice(residues, size=12)) for _ in range(2))
        fold = FOLDS[number % 5]
        table.append((f"P{number}", heavy, light, heavy.count("A") + rng.normal() / 9, fold))
    source = write(tmp_path / "pairs.csv", ("id", "heavy", "light", "y", "fold"), table)
    settings["task"] = {
        "kind": "regression",
        "table": [str(source)],
        "label_columns": ["y"],
        "split": {"column": "fold"},
        "sequence_columns": ["heavy", "light"],
        "chains": "linker",
        "baselines": False,
    }
    path.write_text(yaml.safe_dump(settings))
    config = load_config(path)
    prepare_table(config)
    train_here(path)
    out = tmp_path / "out.csv"
    changes = [f"inference.input=[{source}]", f"inference.output={out}", "train.precision=fp32"]
    with processes() as here:
        predict(load_config(path, changes), here)
    found = {row["id"]: float(row["y"]) for row in rows(out)}
    assert len(found) == 60 and rows(out)[0]["chains"] == "heavy 1-12, light 13-24"
    for row in rows(predictions_file(config.run_dir, "test").with_suffix(".csv")):
        assert found[row["id"]] == pytest.approx(float(row["y"]), abs=1e-3)


def test_data_of_earlier_versions_are_those_of_one_chain(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", ("id", "sequence", "y", "fold"), SINGLE)
    config = run_of(tmp_path, table)
    prepare_table(config)
    file = tmp_path / "data" / "labels.json"
    facts = json.loads(file.read_text())
    for name in ("sequence_columns", "chains"):
        del facts["task"][name]
    file.write_text(json.dumps(facts))
    assert is_prepared(config)
    prepare_table(config)
    assert not is_prepared(run_of(tmp_path, table, chains="linker"))
