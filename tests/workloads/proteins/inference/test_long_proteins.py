"""Proteins that are longer than the model reads: windows, crops and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from seqlm.proteins.alphabet import encode
from seqlm.proteins.inference.embed import embed, layer_embeddings
from seqlm.proteins.inference.engine import EMBEDDING, RESIDUE_EMBEDDINGS, Engine, windows
from seqlm.proteins.model.pretrained import load_model
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from tests.workloads.proteins.inference.written import rows

BOTH_FAMILIES = True

CPU = torch.device("cpu")


def test_windows_cover_a_protein_once() -> None:
    for length in [1, 9, 10, 11, 15, 16, 44, 101]:
        found = windows(length, 10)
        answered = [place for window in found for place in range(window.first, window.last)]
        assert answered == list(range(length))
        for window in found:
            assert 0 <= window.start <= window.first < window.last <= window.stop <= length
            assert window.stop - window.start == min(10, length)
            # A residue is about a quarter of a window away from an end, unless the protein ends there.
            assert window.start == 0 or window.first - window.start >= 2
            assert window.stop == length or window.stop - window.last >= 2


def test_long_proteins_by_each_policy(
    configured: Callable[..., RunFile],
    here: Processes,
    tiny_model: Path,
    fasta: Path,
    sequences: list[str],
    tmp_path: Path,
) -> None:
    engine = Engine(load_model(str(tiny_model)), device=CPU, dtype=torch.float32)
    tokens = encode(sequences[9])  # 120 residues: three windows of 64
    parts = [
        engine.run([tokens[w.start : w.stop]], RESIDUE_EMBEDDINGS)[0][
            w.first - w.start : w.last - w.start
        ]
        for w in windows(120, 64)
    ]
    assert len(parts) == 3
    expected = {
        "window": np.concatenate(parts).mean(axis=0),
        "crop": engine.run([tokens[:64]], EMBEDDING)[0],
    }
    for policy in ("window", "crop", "reject"):
        out = tmp_path / f"{policy}.parquet"
        embed(
            configured(max_residues=64, input=[str(fasta)], output=str(out), long_proteins=policy),
            here,
        )
        found = {row["id"]: row for row in rows(out)}
        if policy == "reject":
            assert "P9" not in found and len(found) == 10
            (reject, *_) = rows(tmp_path / "reject.parquet.rejects.csv")
            assert (
                "record P8 has 90 residues; allowed are 64 (model.max_residues)" in reject["reason"]
            )
        else:
            assert found["P9"]["length"] == 120
            np.testing.assert_allclose(found["P9"]["embedding"], expected[policy], atol=1e-5)


def test_poolings_of_windows_are_those_of_their_residues(
    tiny_model: Path, sequences: list[str]
) -> None:
    engine = Engine(load_model(str(tiny_model)), device=CPU, dtype=torch.float32, max_residues=64)
    tokens = encode(sequences[9])
    (residues,) = engine.run([tokens], RESIDUE_EMBEDDINGS)
    (found,) = engine.run([tokens], layer_embeddings((2,), ("std", "max", "cls")))
    (first,) = engine.run([tokens[:64]], layer_embeddings((2,), ("cls",)))
    expected = np.concatenate([residues.std(axis=0), residues.max(axis=0), first])
    np.testing.assert_allclose(found, expected, atol=1e-5)
