"""A tiny Qwen2, a table of questions, and a run file with prepared data."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqlm.language.model_files import write_model
from seqlm.language.prepare import prepare_chat
from seqlm.runs.run_file import load_config
from tests.workloads.language.question_runs import rows, write_run_file, write_table


@pytest.fixture(scope="session")
def tiny_qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model of about 45,000 parameters, and a tokenizer of the questions' text."""
    folder = tmp_path_factory.mktemp("qwen") / "model"
    write_model(folder, [text for row in rows() for text in row.values()], 384, hidden=32, layers=2)
    return folder


@pytest.fixture(scope="session")
def run_file(tiny_qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    path = write_run_file(folder, tiny_qwen, write_table(folder / "questions.json"))
    prepare_chat(load_config(path))
    return path
