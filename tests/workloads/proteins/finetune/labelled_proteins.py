"""Proteins of two compositions, which is what their labels tell apart, and runs that fine-tune on them."""

from __future__ import annotations

import csv
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml

from seqlm.proteins.alphabet import STANDARD_RESIDUES
from seqlm.proteins.finetune.prepare import prepare_table
from seqlm.runs.run_file import load_config
from tests.workloads.training.training_runs import write_run_file

NUM_PROTEINS = 160
TASKS: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "binary": {"label_columns": ["membrane"]},
        "multiclass": {"label_columns": ["place"]},
        "multilabel": {"label_columns": ["membrane", "long"]},
        "regression": {"label_columns": ["temperature"]},
        "residue": {"label_columns": ["structure"], "classes": ["C", "E", "H"]},
    }
)
"""Label columns of each kind."""


def write_table(path: Path) -> None:
    """Residues of 140 at most, so that some are longer than a run of tests reads."""
    rng = np.random.default_rng(7)
    residues = list(STANDARD_RESIDUES)
    compositions = [rng.dirichlet(np.full(len(residues), 0.3)) for _ in range(2)]
    header = ("id", "sequence", "fold", "membrane", "long", "place", "temperature", "structure")
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(header)
        for number in range(NUM_PROTEINS):
            kind = int(rng.random() < 0.3)
            length = int(rng.integers(10, 141))
            sequence = "".join(rng.choice(residues, size=length, p=compositions[kind]))
            place = "nucleus" if kind else ("cytosol", "golgi")[length > 70]
            structure = "".join(
                "-" if letter == "M" else "CEH"[ord(letter) % 3] for letter in sequence
            )
            is_long = "" if number % 10 == 0 else int(length > 70)
            temperature = "" if number % 11 == 5 else f"{60 + 15 * kind + rng.normal():.2f}"
            table.writerow(
                (f"P{number}", sequence, number % 5, kind, is_long, place, temperature, structure)
            )


def write_task_file(folder: Path, model: Path, kind: str) -> Path:
    """A run that fine-tunes in 8 fp32 steps, with its data prepared; all is in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder / "table.csv")
    path = write_run_file(folder, folder / "data", model)
    settings = yaml.safe_load(path.read_text())
    settings["train"]["max_steps"] = 8
    settings["optim"] |= {"lr": 1e-2, "warmup_steps": 2, "schedule": "constant"}
    settings["task"] = {
        "kind": kind,
        "table": [str(folder / "table.csv")],
        "split": {"column": "fold", "validation": [3], "test": [4]},
        "baselines": False,
        **TASKS[kind],
    }
    path.write_text(yaml.safe_dump(settings))
    prepare_table(load_config(path))
    return path
