"""biotrainer loads our ESM-2 folder and gives the same embeddings. Its environment is .venv-biotrainer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from seqlm.api import load
from tests.workloads.proteins.tiny_models import save_tiny_model

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv-biotrainer/bin/python"
if not PYTHON.exists():
    pytest.skip("biotrainer is not installed here: make test-biotrainer", allow_module_level=True)


def test_embeddings_are_those_of_biotrainer(tmp_path: Path) -> None:
    """Proteins are short and have the letters that biotrainer keeps: the 20 residues and X."""
    rng = np.random.default_rng(0)
    letters = list("LAGVSERTIDPKQNFYMHWCX")
    proteins = {f"P{size}": "".join(rng.choice(letters, size=size)) for size in (5, 37, 203, 511)}
    fasta = tmp_path / "proteins.fasta"
    fasta.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in proteins.items()))
    model = save_tiny_model(tmp_path / "model")
    script = str(Path(__file__).with_name("embed.py"))
    command = [str(PYTHON), script, str(model), str(fasta), str(tmp_path / "theirs.npz")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = np.load(tmp_path / "theirs.npz")
    ours = load(str(model), precision="fp32")
    assert len(theirs.files) == 2 * len(proteins)
    means = ours.embed(proteins)
    residues = ours.embed(proteins, pooling="none")
    for name, mean, each in zip(proteins, means, residues, strict=True):
        np.testing.assert_allclose(theirs[f"reduced/{name}"], mean, atol=1e-5)
        np.testing.assert_allclose(theirs[f"residues/{name}"], each, atol=1e-5)
