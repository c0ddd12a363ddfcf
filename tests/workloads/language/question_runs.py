"""Questions with the columns of the medical data set, and runs on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

NUM_STEPS = 16
ORGANS = ("heart", "liver", "lung", "kidney", "skin", "bone")


def rows(num: int = 150) -> list[dict[str, str]]:
    return [
        {
            "Question": f"Patient {number} has pain in the {ORGANS[number % 6]}, {number % 9} days. And now?",
            "Complex_CoT": f"The {ORGANS[number % 6]} hurts, so we look at it first.",
            "Response": f"Examine the {ORGANS[number % 6]} of the patient.",
        }
        for number in range(num)
    ]


def write_table(path: Path, found: list[dict[str, str]] | None = None) -> Path:
    path.write_text(json.dumps(rows() if found is None else found))
    return path


def write_run_file(folder: Path, model: Path, table: Path) -> Path:
    """A run of 16 fp32 steps of 4 packs; all it writes is in the folder."""
    settings: dict[str, Any] = {
        "name": "run",
        "runs": str(folder / "runs"),
        "model": {"init_from": str(model)},
        "chat": {
            "table": [str(table)],
            "question_column": "Question",
            "reasoning_column": "Complex_CoT",
            "answer_column": "Response",
            "prompt": "<|user|>{question}<|assistant|>",
            "response": "<think>{reasoning}</think>{answer}",
            "answer_follows": "</think>",
            "max_tokens": 96,
            "questions": 6,
            "max_new_tokens": 48,
        },
        "data": {
            "path": str(folder / "data"),
            "downloads": str(folder / "downloads"),
            "test_fraction": 0.1,
        },
        "optim": {"lr": 1e-2, "warmup_steps": 2, "schedule": "constant"},
        "train": {
            "max_steps": NUM_STEPS,
            "tokens_per_pack": 384,
            "tokens_per_step": 1536,
            "precision": "fp32",
            "log_every_steps": 1,
            "eval_every_steps": 1000,
            "save_every_steps": 1000,
        },
        "tracking": {"mlflow": False},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path
