"""Scores against hand-counted examples, and the report of a fine-tuned model."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from seqlm.commands.kinds import report
from seqlm.proteins.finetune.labels import LabelSchema, save_schema
from seqlm.proteins.finetune.prediction_file import (
    Predictions,
    predictions_file,
    write_prediction_table,
)
from seqlm.proteins.finetune.scores import class_scores, confusion, scores
from tests.workloads.training.training_runs import curves_not_drawn

NAN = math.nan


@pytest.fixture(autouse=True)
def curves_undrawn() -> Iterator[None]:
    with curves_not_drawn():
        yield


BINARY = LabelSchema("binary", ("membrane",), ("not membrane", "membrane"))
COLOURS = LabelSchema("multiclass", ("colour",), ("red", "green", "blue"))
PLACES = LabelSchema("multilabel", ("nucleus", "<b>golgi</b>"))
VALUES = LabelSchema("regression", ("stability",))
STATES = LabelSchema("residue", ("state",), ("C", "H"))


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)[:, None]


def test_binary_scores_are_those_counted_by_hand() -> None:
    # 2 true positives, 1 false positive, 1 false negative, 2 true negatives; one protein has no label.
    labels = column(1, 1, 1, 0, 0, 0, NAN)
    logits = column(2, 1, -1, 3, -2, -3, 9)
    found = scores(BINARY, labels, logits)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["mcc"] == pytest.approx((2 * 2 - 1 * 1) / math.sqrt(3 * 3 * 3 * 3))
    assert found["precision"] == found["recall"] == found["f1"] == pytest.approx(2 / 3)
    # Of the nine pairs of a positive and a negative, six are ranked rightly.
    assert found["auroc"] == pytest.approx(6 / 9)
    assert found["auprc"] == pytest.approx((1 / 2 + 2 / 3 + 3 / 4) / 3)
    assert confusion(BINARY, labels, logits).tolist() == [[2, 1], [1, 2]]  # type: ignore[union-attr]


def test_multiclass_scores_count_classes_alike() -> None:
    labels = column(0, 0, 0, 1, 2, NAN)
    logits = np.eye(3, dtype=np.float32)[[0, 0, 1, 1, 0, 2]]
    found = scores(COLOURS, labels, logits)
    assert found["accuracy"] == pytest.approx(3 / 5)
    # 3 of 5 right; of each class truly (3, 1, 1) and predicted (3, 2, 0).
    assert found["mcc"] == pytest.approx(
        (3 * 5 - (9 + 2 + 0)) / math.sqrt((25 - (9 + 4 + 0)) * (25 - (9 + 1 + 1)))
    )
    assert found["f1"] == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)
    counts = confusion(COLOURS, labels, logits)
    assert counts is not None and counts.tolist() == [[2, 1, 0], [0, 1, 0], [1, 0, 0]]


def test_multilabel_scores_take_labels_apart_and_whole() -> None:
    labels = np.array([[1, 0], [1, 1], [0, 0], [NAN, 1]], dtype=np.float32)
    logits = np.array([[1, -1], [1, -1], [-1, -1], [5, 1]], dtype=np.float32)
    found = scores(PLACES, labels, logits)
    assert found["accuracy"] == pytest.approx((3 / 3 + 3 / 4) / 2)
    assert found["exact_match"] == pytest.approx(2 / 3)
    assert found["jaccard"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert [part.examples for part in class_scores(PLACES, labels, logits)] == [2, 2]
    assert confusion(PLACES, labels, logits) is None


def test_measurements_are_scored_where_they_were_made() -> None:
    found = scores(VALUES, column(1, 2, 3, NAN), column(2, 3, 7, 100))
    assert found["spearman"] == 1.0
    assert found["rmse"] == pytest.approx(math.sqrt((1 + 1 + 16) / 3))
    assert found["mae"] == 2.0
    assert found["r2"] == pytest.approx(1 - 18 / 2)


def test_residues_without_a_label_do_not_count() -> None:
    found = scores(
        STATES, column(0, 1, NAN, 1), np.array([[2, 1], [0, 1], [9, 0], [3, 0]], dtype=np.float32)
    )
    assert found["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "schema", [BINARY, COLOURS, PLACES, VALUES, STATES], ids=lambda schema: schema.kind
)
def test_what_a_split_does_not_define_is_not_a_number(schema: LabelSchema) -> None:
    width = len(schema.columns) if schema.kind != "residue" else 1
    for labels in (np.full((3, width), NAN), np.zeros((3, width)), np.zeros((0, width))):
        outputs = np.zeros((len(labels), schema.num_outputs), dtype=np.float32)
        found = scores(schema, labels.astype(np.float32), outputs)
        assert math.isnan(found["spearman" if schema.kind == "regression" else "auroc"])
        outputs[:] = NAN
        assert not math.isinf(max(scores(schema, labels.astype(np.float32), outputs).values()))


LINES = {
    "binary": (
        BINARY,
        [[1], [NAN]],
        [[0], [-math.log(3)]],
        "true,label,probability_membrane|membrane,membrane,0.5|,not membrane,0.25",
    ),
    "multiclass": (
        COLOURS,
        [[2], [NAN]],
        [[0, 0, 0], [0, math.log(2), 0]],
        "true,label,probability_red,probability_green,probability_blue"
        "|blue,red,0.333333,0.333333,0.333333|,green,0.25,0.5,0.25",
    ),
    "multilabel": (
        PLACES,
        [[1, 0], [NAN, 1]],
        [[0, 0], [0, math.log(3)]],
        "true,label,probability_nucleus,probability_<b>golgi</b>"
        "|nucleus,nucleus;<b>golgi</b>,0.5,0.5|nucleus?;<b>golgi</b>,nucleus;<b>golgi</b>,0.5,0.75",
    ),
    "regression": (VALUES, [[2.5], [NAN]], [[2], [3]], "true_stability,stability|2.5,2|,3"),
}


@pytest.mark.parametrize("kind", LINES)
def test_predictions_are_a_table_with_a_line_a_protein(tmp_path: Path, kind: str) -> None:
    schema, labels, outputs, expected = LINES[kind]
    found = Predictions(
        np.array(["p,0", "p1"]),
        np.arange(3),
        np.array(labels, np.float32),
        np.array(outputs, np.float32),
        np.array([7, 9]),
    )
    write_prediction_table(tmp_path / "t.csv", schema, found)
    head, first, second = expected.split("|")
    assert (tmp_path / "t.csv").read_text().splitlines() == [
        f"id,length,{head}",
        f'"p,0",7,{first}',
        f"p1,9,{second}",
    ]


@pytest.mark.parametrize(
    ("classes", "lines"),
    [
        (("C", "H"), ["p0,2,C-,CH", "p1,3,HCC,HCC"]),
        (("coil", "H"), ["p0,2,coil -,coil H", "p1,3,H coil coil,H coil coil"]),
    ],
)
def test_residues_of_a_protein_are_one_cell_each_way(
    tmp_path: Path, classes: tuple[str, str], lines: list[str]
) -> None:
    schema = LabelSchema("residue", ("state",), classes)
    outputs = np.eye(2, dtype=np.float32)[[0, 1, 1, 0, 0]]
    found = Predictions(
        np.array(["p0", "p1"]),
        np.array([0, 2, 5]),
        column(0, NAN, 1, 0, 0),
        outputs,
        np.array([2, 3]),
    )
    write_prediction_table(tmp_path / "t.csv", schema, found)
    assert (tmp_path / "t.csv").read_text().splitlines() == ["id,length,true,label", *lines]


def finished_run(
    folder: Path, schema: LabelSchema, labels: np.ndarray, outputs: np.ndarray
) -> Path:
    """A run folder as training leaves it, with the data's note of its labels."""
    run = folder / "run"
    data = folder / "data"
    run.mkdir()
    data.mkdir()
    save_schema(data, schema, {})
    config = {
        "name": "membrane",
        "task": {"kind": schema.kind},
        "lora": {"rank": 8},
        "model": {"init_from": "facebook/esm2_t6_8M_UR50D", "size": "8M", "max_residues": 1022},
        "data": {"path": str(data)},
        "optim": {"name": "adamw"},
        "parallel": {"mode": "ddp"},
        "train": {"max_steps": 20},
    }
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    lines: list[dict[str, Any]] = [
        {
            "kind": "train",
            "step": n,
            "loss": 1 / n,
            "residues": 100 * n,
            "residues_per_second": 50.0,
            "seconds": n,
        }
        for n in range(1, 21)
    ]
    lines.append(
        {
            "kind": "eval",
            "split": "validation",
            "step": 20,
            "eval_loss": 0.3,
            "eval_accuracy": 0.75,
            "eval_mcc": 0.5,
        }
    )
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    results = {"train_loss": 0.2, "parameters": 200_000}
    (run / "all_results.json").write_text(json.dumps(results))
    rows = np.arange(len(labels) + 1)
    Predictions(rows[:-1].astype(np.str_), rows, labels, outputs, rows[:-1]).save(
        predictions_file(run, "test")
    )
    return run


def test_residues_that_are_left_out_are_counted(tmp_path: Path) -> None:
    labels, outputs = drawn(STATES)
    labels[:7] = NAN
    run = finished_run(tmp_path, STATES, labels, outputs)
    found = replace(Predictions.load(predictions_file(run, "test")), num_masked=5)
    found.save(predictions_file(run, "test"))
    assert "Residues: 53 scored, 5 masked, 2 unlabelled." in report(run).read_text()


def drawn(schema: LabelSchema, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Labels and outputs that mostly agree."""
    rng = np.random.default_rng(0)
    if schema.kind in ("multiclass", "residue"):
        labels = rng.integers(0, len(schema.classes), size=(count, 1)).astype(np.float32)
        outputs = np.eye(len(schema.classes))[labels[:, 0].astype(int)] + rng.normal(
            0, 0.6, (count, len(schema.classes))
        )
    else:
        labels = rng.integers(0, 2, size=(count, len(schema.columns))).astype(np.float32)
        outputs = 2 * labels - 1 + rng.normal(0, 1, labels.shape)
    return labels, outputs.astype(np.float32)


@pytest.mark.parametrize(
    "schema", [BINARY, COLOURS, PLACES, VALUES, STATES], ids=lambda schema: schema.kind
)
def test_the_report_shows_scores_figures_and_classes(tmp_path: Path, schema: LabelSchema) -> None:
    labels, outputs = drawn(schema)
    text = report(finished_run(tmp_path, schema, labels, outputs)).read_text()
    found = scores(schema, labels, outputs)
    assert "Predictions for the test split" in text
    assert "perplexity" not in text.lower()
    has = {
        title: f'aria-label="{title}' in text
        for title in ("Confusion", "ROC", "Predicted over measured")
    }
    assert has == {
        "Confusion": schema.kind in ("binary", "multiclass", "residue"),
        "ROC": schema.kind != "regression",
        "Predicted over measured": schema.kind == "regression",
    }
    headline = {"regression": "spearman", "multilabel": "jaccard"}.get(schema.kind, "mcc")
    assert f"{found[headline]:.3f}" in text
    for part in class_scores(schema, labels, outputs):
        row = re.search(
            rf"<tr><td>{re.escape(part.name.replace('<', '&lt;').replace('>', '&gt;'))}</td>.*?</tr>",
            text,
        )
        assert row is not None
        name, value = list(part.values.items())[1]
        assert f"{value:.3f}" in row.group(), name
    assert "<b>golgi" not in text
    assert "<image" not in text  # the page's policy refuses pictures, data: addresses too
    assert "200 k" in text and "LoRA of rank 8" in text


def test_dollar_signs_in_the_names_of_classes_are_text(tmp_path: Path) -> None:
    """Two of them would begin a formula, which may be a wrong one."""
    names = (r"$\frac{$", "a$b$c", "cost ($) per unit ($)")
    schema = dataclasses.replace(COLOURS, classes=names)
    labels, outputs = drawn(schema)
    text = html.unescape(report(finished_run(tmp_path, schema, labels, outputs)).read_text())
    figures = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    for name in names:
        assert name in figures


def test_scores_are_shown_by_length_class(tmp_path: Path) -> None:
    labels, outputs = drawn(BINARY, 300)
    text = report(finished_run(tmp_path, BINARY, labels, outputs)).read_text()
    # The helper gives the protein of row n the length n.
    row = re.search(r"<tr><td>129 to 256</td>(.*?)</tr>", text)
    assert row is not None
    found = scores(BINARY, labels[129:257], outputs[129:257])
    assert ">128<" in row[1] and f"{found['mcc']:.3f}" in row[1]
    assert "257 to 512" in text and "513 to 1024" not in text


def test_the_confusion_matrix_follows_the_theme(tmp_path: Path) -> None:
    text = report(finished_run(tmp_path, COLOURS, *drawn(COLOURS))).read_text()
    matrix = text[text.index('aria-label="Confusion') :].split("</svg>")[0]
    assert set(re.findall(r"(?:fill|stroke): ([^;\"]+)", matrix)) <= {
        *("none", "var(--accent)", "var(--ink)", "var(--panel)", "var(--line)", "var(--edge)")
    }


def test_a_run_that_is_still_going_shows_its_last_evaluation(tmp_path: Path) -> None:
    run = finished_run(tmp_path, BINARY, *drawn(BINARY))
    predictions_file(run, "test").unlink()
    (run / "all_results.json").unlink()
    text = report(run).read_text()
    assert "Predictions for" not in text and "unfinished" in text
    assert re.search(
        r'Accuracy</div><div class="value">0\.750</div><div class="note">validation', text
    )


def test_predictions_that_cannot_be_read_leave_the_rest_of_the_report(tmp_path: Path) -> None:
    run = finished_run(tmp_path, BINARY, *drawn(BINARY))
    predictions_file(run, "test").write_bytes(b"PK damaged")
    assert "Training loss" in report(run).read_text()
