"""Baselines stand beside the tuned model in the report, and equal scikit-learn's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import CountVectorizer
from transformers import AutoModelForMaskedLM, AutoTokenizer

from seqlm.proteins.alphabet import decode
from seqlm.proteins.finetune.labelled import LabelledSplit
from seqlm.proteins.finetune.probes import Examples, fit_probe
from seqlm.proteins.finetune.scores import scores
from seqlm.runs.run_file import RunFile, load_config
from tests.workloads.proteins.finetune.labelled_proteins import write_task_file
from tests.workloads.training.training_runs import train_here


def examples(config: RunFile, name: str) -> tuple[list[np.ndarray], np.ndarray]:
    split = LabelledSplit(config.data.path, name)  # type: ignore[arg-type]
    units = np.arange(split.num_units)
    return [split.token_ids(split.draw(int(unit), 1, 0, 0)[0][0]) for unit in units], split.labels(
        units
    )


def test_the_report_compares_with_a_probe_and_kmers(tiny_model: Path, tmp_path: Path) -> None:
    path = write_task_file(tmp_path, tiny_model, "binary")
    train_here(path, "task.baselines=true")
    config = load_config(path)
    document = json.loads((config.run_dir / "baselines.json").read_text())
    assert (document["split"], document["train"], document["proteins"]) == ("test", 96, 32)
    parts = [examples(config, name) for name in ("train", "validation", "test")]
    plain = AutoModelForMaskedLM.from_pretrained(tiny_model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    def embedding(protein: np.ndarray) -> np.ndarray:
        tokens = torch.tensor([[tokenizer.cls_token_id, *protein.tolist(), tokenizer.eos_token_id]])
        with torch.no_grad():
            return np.asarray(plain.base_model(tokens).last_hidden_state[0, 1:-1].mean(dim=0))

    counts = CountVectorizer(analyzer="char", ngram_range=(3, 3), lowercase=False)
    counts.fit([decode(protein) for protein in parts[0][0]])
    features = {
        "frozen probe": [np.stack([embedding(p) for p in proteins]) for proteins, _ in parts],
        "k-mers": [counts.transform([decode(p) for p in proteins]) for proteins, _ in parts],
    }
    schema = LabelledSplit(config.data.path, "train").schema
    for name, found in features.items():
        train, validation, test = (Examples(x, y) for x, (_, y) in zip(found, parts, strict=True))
        probe = fit_probe(schema, train, validation)
        expected = scores(schema, test.labels, probe.outputs(test.features))
        assert document["scores"][name]["auroc"] == pytest.approx(expected["auroc"], abs=0.02)
    page = (config.run_dir / "report.html").read_text()
    assert all(
        name in page for name in ("tuned model", "frozen probe", "k-mers", "96 proteins to fit")
    )


@pytest.mark.long
def test_residues_have_baselines(tiny_model: Path, tmp_path: Path) -> None:
    path = write_task_file(tmp_path, tiny_model, "residue")
    train_here(path, "task.baselines=true")
    config = load_config(path)
    found = json.loads((config.run_dir / "baselines.json").read_text())["scores"]
    # The label of a residue is a function of its letter.
    assert found["k-mers"]["accuracy"] > 0.95 and found["frozen probe"]["accuracy"] > 0.8
