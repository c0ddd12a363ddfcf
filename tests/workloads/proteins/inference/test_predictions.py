"""Predictions equal those of transformers, and unusable models are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PretrainedConfig,
)

from seqlm.proteins.alphabet import MASK, encode
from seqlm.proteins.inference.embed import embed
from seqlm.proteins.inference.engine import MASKED_LOGITS, PROTEIN_LOGITS, RESIDUE_LOGITS, Engine
from seqlm.proteins.inference.predict import predict
from seqlm.proteins.model.pretrained import load_model, save_esm
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from tests.workloads.proteins.inference.written import rows

BOTH_FAMILIES = True

CPU = torch.device("cpu")


def save_head(folder: Path, config: PretrainedConfig, head: Any, **changes: Any) -> Path:
    """Save a model with a head of one of transformers' Auto classes."""
    kind = head._model_mapping[type(config)]
    fields = {**config.to_dict(), "architectures": [kind.__name__], **changes}
    made = type(config).from_dict(fields)
    torch.manual_seed(1)
    save_esm(folder, made, kind(made).state_dict(), kind)
    return folder


def _logits(kind: Any, folder: Path, sequences: list[str]) -> list[np.ndarray]:
    model = kind.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return [model(**tokenizer(text, return_tensors="pt")).logits.numpy() for text in sequences]


def test_heads_compute_in_fp32_after_layers_in_bf16(
    tiny_config: PretrainedConfig, tiny_model: Path, sequences: list[str], tmp_path: Path
) -> None:
    """Answers in bf16 have three digits: proteins would tie, and small differences of variants vanish."""
    names = {0: "a", 1: "b"}
    masked = [np.concatenate([[np.uint8(MASK)], encode(text)]) for text in sequences]
    answers = {
        save_head(
            tmp_path / "residue", tiny_config, AutoModelForTokenClassification, id2label=names
        ): RESIDUE_LOGITS,
        save_head(
            tmp_path / "sequence",
            tiny_config,
            AutoModelForSequenceClassification,
            id2label=names,
            problem_type="regression",
        ): PROTEIN_LOGITS,
        tiny_model: MASKED_LOGITS,
    }
    for folder, answer in answers.items():
        engine = Engine(load_model(str(folder)), device=CPU, dtype=torch.bfloat16)
        numbers = torch.tensor(
            np.concatenate([found.ravel() for found in engine.run(masked, answer)])
        )
        assert (numbers != numbers.bfloat16().float()).float().mean() > 0.9


def test_predictions_are_those_of_transformers(
    configured: Callable[..., RunFile],
    here: Processes,
    tiny_config: PretrainedConfig,
    fasta: Path,
    sequences: list[str],
    tmp_path: Path,
) -> None:
    names = {0: "Nucleus", 1: "Membrane", 2: "Cell wall"}
    for problem in ("multi_label_classification", "single_label_classification", "regression"):
        folder = save_head(
            tmp_path / problem,
            tiny_config,
            AutoModelForSequenceClassification,
            id2label=names,
            problem_type=problem,
        )
        logits = _logits(AutoModelForSequenceClassification, folder, sequences)
        out = tmp_path / f"{problem}.csv"
        predict(configured(model=str(folder), input=[str(fasta)], output=str(out)), here)
        for row, expected in zip(rows(out), logits, strict=True):
            if problem == "regression":
                found = [float(row[name]) for name in names.values()]
                np.testing.assert_allclose(found, expected[0], atol=1e-5)
                continue
            is_multi = problem.startswith("multi")
            values = torch.tensor(expected[0])
            wanted = (values.sigmoid() if is_multi else values.softmax(-1)).tolist()
            np.testing.assert_allclose(
                [float(row[f"probability_{name}"]) for name in names.values()], wanted, atol=1e-5
            )
            likely = [name for name, p in zip(names.values(), wanted, strict=True) if p >= 0.5]
            assert row["label"] == (";".join(likely) if is_multi else names[int(np.argmax(wanted))])


def test_residue_labels_are_those_of_transformers(
    configured: Callable[..., RunFile],
    here: Processes,
    tiny_config: PretrainedConfig,
    fasta: Path,
    sequences: list[str],
    tmp_path: Path,
) -> None:
    folder = save_head(
        tmp_path / "residue",
        tiny_config,
        AutoModelForTokenClassification,
        id2label={0: "H", 1: "E", 2: "C"},
    )
    out = tmp_path / "out.csv"
    predict(configured(model=str(folder), input=[str(fasta)], output=str(out)), here)
    logits = _logits(AutoModelForTokenClassification, folder, sequences)
    for row, expected in zip(rows(out), logits, strict=True):
        inner = torch.tensor(expected[0, 1:-1])
        assert row["label"] == "".join("HEC"[index] for index in inner.argmax(-1).tolist())
        found = [float(text) for text in row["probability"].split()]
        np.testing.assert_allclose(found, inner.softmax(-1).amax(-1).tolist(), atol=1e-4)


def test_unusable_models_are_refused(
    configured: Callable[..., RunFile],
    here: Processes,
    tiny_config: PretrainedConfig,
    fasta: Path,
    tmp_path: Path,
) -> None:
    length = save_head(
        tmp_path / "length",
        tiny_config,
        AutoModelForSequenceClassification,
        id2label={0: "length"},
        problem_type="regression",
    )
    cases: list[tuple[Callable[[RunFile, Processes], None], dict[str, Any], str]] = [
        (predict, {"model": str(length)}, "predicts a value called length, as another column is"),
        (predict, {}, "a masked language model without a task, so it has nothing to predict"),
        (embed, {"output": "x.csv"}, r"inference.output: got x.csv; its name must end in .parquet"),
        (embed, {"output": "/dev/null/x.parquet"}, "/dev/null cannot be written"),
        (embed, {"model": str(tmp_path)}, "neither config.json"),
        (embed, {"input": [str(tmp_path / "none.fa")]}, "no such file or folder"),
        (
            embed,
            {"input": [str(tmp_path / "run.yaml")]},
            "sequence before the first header|not FASTA",
        ),
    ]
    for command, changes, message in cases:
        settings = {"input": [str(fasta)], **changes}
        with pytest.raises(ValueError, match=message):
            command(configured(**settings), here)
    table = tmp_path / "t.csv"
    table.write_text("name,chain\na,MK\n")
    with pytest.raises(ValueError, match=r"no column that is known for sequences.*'name', 'chain'"):
        embed(configured(input=[str(table)]), here)
