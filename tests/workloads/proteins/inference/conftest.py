"""Configurations of the commands of inference, the process that runs them, and proteins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.processes import Processes, processes


@pytest.fixture(scope="module")
def here() -> Iterator[Processes]:
    with processes() as found:
        yield found


@pytest.fixture
def configured(tmp_path: Path, tiny_model: Path) -> Callable[..., RunFile]:
    """Return a function that writes ``run.yaml`` and loads it with changes to its section ``inference``."""
    path = tmp_path / "run.yaml"

    def configure(*, max_residues: int = 1022, **inference: Any) -> RunFile:
        settings = {
            "name": "run",
            "runs": str(tmp_path / "runs"),
            "model": {"max_residues": max_residues},
            "train": {"precision": "fp32"},
        }
        path.write_text(yaml.safe_dump(settings))
        fields = {"model": str(tiny_model), "tokens_per_pack": 256, **inference}
        return load_config(
            path, [f"inference.{name}={json.dumps(value)}" for name, value in fields.items()]
        )

    return configure


@pytest.fixture(scope="module")
def sequences() -> list[str]:
    """Proteins of very different lengths, because neighbours in a pack must not see each other."""
    rng = np.random.default_rng(0)
    lengths = [1, 2, 15, 16, 17, 31, 33, 64, 90, 120, 7, 5, 126, 101]
    return ["".join(rng.choice(list("LAGVSERTIDPKQNFYMHWC"), size=length)) for length in lengths]


@pytest.fixture
def fasta(sequences: list[str], tmp_path: Path) -> Path:
    path = tmp_path / "proteins.fasta"
    path.write_text("".join(f">P{index} note\n{text}\n" for index, text in enumerate(sequences)))
    return path
