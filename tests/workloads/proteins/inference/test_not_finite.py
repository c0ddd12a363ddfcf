"""A model that diverged gives no results, whichever command it is given to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, PretrainedConfig

from seqlm.proteins.contacts.command import contacts
from seqlm.proteins.inference.embed import embed
from seqlm.proteins.inference.predict import predict
from seqlm.proteins.inference.variants import variants
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from seqlm.training.scoring import NotFiniteError
from tests.workloads.proteins.inference.test_predictions import save_head


def break_weights(folder: Path, source: Path) -> Path:
    """Copy a model folder, with one NaN in one weight."""
    folder.mkdir()
    for path in source.iterdir():
        if path.name != "SHA256SUMS":
            (folder / path.name).write_bytes(path.read_bytes())
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "LayerNorm" in name or "norm" in name)
    weights[name][0] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture
def diverged(tiny_model: Path, tmp_path: Path) -> Path:
    return break_weights(tmp_path / "diverged", tiny_model)


@pytest.mark.parametrize("pooling", ["mean", "max", "none"])
def test_embed(
    pooling: str, configured: Callable[..., RunFile], here: Processes, fasta: Path, diverged: Path
) -> None:
    out = diverged.parent / "out.parquet"
    config = configured(input=[str(fasta)], output=str(out), model=str(diverged), pooling=[pooling])
    with pytest.raises(NotFiniteError, match="the model's answers are not finite"):
        embed(config, here)
    assert not out.exists()


def test_variants_and_contacts(
    configured: Callable[..., RunFile], here: Processes, fasta: Path, diverged: Path
) -> None:
    table = diverged.parent / "mutations.csv"
    table.write_text("id,mutations\nP3,A1G\n")
    commands: dict[Any, dict[str, Any]] = {
        variants: {"output": str(diverged.parent / "out.csv")},
        contacts: {"output": str(diverged.parent / "out.parquet"), "fit_contacts": True},
    }
    for command, settings in commands.items():
        config = configured(input=[str(fasta)], model=str(diverged), **settings)
        with pytest.raises(NotFiniteError):
            command(config, here)
        assert not Path(settings["output"]).exists()


def test_predict(
    configured: Callable[..., RunFile],
    here: Processes,
    fasta: Path,
    tiny_config: PretrainedConfig,
    tmp_path: Path,
) -> None:
    whole = save_head(
        tmp_path / "whole",
        tiny_config,
        AutoModelForSequenceClassification,
        id2label={0: "a", 1: "b", 2: "c"},
        problem_type="single_label_classification",
    )
    out = tmp_path / "out.csv"
    model = break_weights(tmp_path / "diverged", whole)
    with pytest.raises(NotFiniteError):
        predict(configured(input=[str(fasta)], output=str(out), model=str(model)), here)
    assert not out.exists()
