"""Fine-tuning on real proteins beats the commonest class and classifiers of k-mer counts.

Proteins of the embedded sample, by their first 60 residues: those that a signal or transit peptide sends out
of the cell or into an organelle, against those of cytoplasm and nucleus. The positions of residues in the
sequence matter, and counts do not contain them.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from seqlm.commands.kinds import prepare as prepare_run
from seqlm.proteins.finetune.prepare import TABLES
from seqlm.runs.run_file import load_config
from tests.workloads.training.training_runs import train_here

pytestmark = pytest.mark.long

PRETRAINED = Path(__file__).parent / "esm2_tiny"
FIRST_RESIDUES = 60
SENT = ("Extracellular", "Mitochondrion", "Plastid")
STAYING = ("Cytoplasm", "Nucleus")
VALIDATION = "3"
TEST = "4"
TOKENS_PER_PACK = 1024


@dataclass(frozen=True)
class Protein:
    id: str
    fold: str
    start: str
    is_sent: bool


@pytest.fixture(scope="module")
def proteins() -> list[Protein]:
    with gzip.open(TABLES.sample, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Protein(row["ACC"], row["Partition"], row["Sequence"][:FIRST_RESIDUES], sent)
        for row in rows
        if (sent := any(row[name] == "1" for name in SENT))
        != any(row[name] == "1" for name in STAYING)
    ]


@pytest.fixture(scope="module")
def kmer_accuracy(proteins: list[Protein]) -> float:
    """Logistic regression on counts of 1-, 2- and 3-mers, its strength chosen on the validation fold."""
    counts = CountVectorizer(analyzer="char", ngram_range=(1, 3), lowercase=False)
    features = normalize(
        counts.fit_transform([protein.start for protein in proteins]).astype(float)
    )
    truth = np.array([protein.is_sent for protein in proteins])
    folds = np.array([protein.fold for protein in proteins])
    train = ~np.isin(folds, (VALIDATION, TEST))
    models = [
        LogisticRegression(C=strength, max_iter=300).fit(features[train], truth[train])
        for strength in (1, 10, 100)
    ]
    best = max(
        models,
        key=lambda model: model.score(features[folds == VALIDATION], truth[folds == VALIDATION]),
    )
    return float(best.score(features[folds == TEST], truth[folds == TEST]))


@pytest.fixture(scope="module")
def fine_tune(
    proteins: list[Protein], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., float]:
    """Fine-tune the small pre-trained model for one epoch; the accuracy on the test fold."""
    folder = tmp_path_factory.mktemp("kmers")
    table = folder / "table.csv"
    with table.open("w", newline="") as file:
        rows = [(p.id, p.start, p.fold, int(p.is_sent)) for p in proteins]
        csv.writer(file).writerows([("id", "sequence", "fold", "sent"), *rows])
    settings = {
        "runs": str(folder / "runs"),
        "model": {"init_from": str(PRETRAINED), "max_residues": FIRST_RESIDUES},
        "data": {"path": str(folder / "labelled")},
        "optim": {"lr": 1e-3, "warmup_steps": 15, "final_lr_fraction": 0.02},
        "train": {
            "max_steps": 130,
            "tokens_per_pack": TOKENS_PER_PACK,
            "tokens_per_step": TOKENS_PER_PACK,
            "precision": "fp32",
            "eval_every_steps": 10_000,
            "save_every_steps": 10_000,
        },
        "tracking": {"mlflow": False},
        "task": {
            "kind": "binary",
            "table": [str(table)],
            "label_columns": ["sent"],
            "split": {"column": "fold", "validation": [VALIDATION], "test": [TEST]},
        },
    }

    def accuracy(name: str, *overrides: str) -> float:
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings))
        prepare_run(load_config(path))
        train_here(path, *overrides)
        results = json.loads((folder / "runs" / name / "all_results.json").read_text())
        return float(results["test_accuracy"])

    return accuracy


def test_adapters_learn_more_than_kmers_tell(
    proteins: list[Protein], kmer_accuracy: float, fine_tune: Callable[..., float]
) -> None:
    held_out = [protein.is_sent for protein in proteins if protein.fold == TEST]
    majority = max(np.mean(held_out), 1 - np.mean(held_out))
    lora = ("lora.rank=8", "lora.lr=3e-3", "train.activation_checkpointing=true")
    accuracy = fine_tune("lora", *lora, f"train.tokens_per_pack={TOKENS_PER_PACK // 2}")
    assert majority < kmer_accuracy < accuracy
