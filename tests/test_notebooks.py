"""The notebooks have no outputs in git, and run from the wheel with a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.one_core import one_core
from tests.package import REPOSITORY, Package, installed_package
from tests.workloads.proteins.tiny_models import save_tiny_model

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
RESULTS = {
    "contacts_and_scorecard": (
        "(56, 56)",
        "1 protein chain, named as by the author",
        "secondary structure: accuracy (Q3)",
    ),
    "embed_and_explore": ("(80, 32)", "embeddings.vectors.npy", "transferred"),
    "fine_tune_your_table": ("test_auroc", "probability_secreted", "split: modulo, fold 0 of 5"),
    "variants": ("K2R", "H.E1Q:L.D1E", "variants.positions.csv", "uncertainty"),
}
"""Texts in the outputs of each notebook."""
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=900).execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.fixture(scope="module")
def installed() -> Package:
    return installed_package()


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_notebooks_have_no_outputs() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(RESULTS)
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        assert not outputs(notebook) and not any(
            cell.get("execution_count") for cell in notebook.cells
        )
        assert "**Not proven:** SageMaker Studio and Google Colab" in notebook.cells[0].source


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_from_the_wheel(
    path: Path, installed: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL", str(save_tiny_model(tmp_path / "model")))
    monkeypatch.setenv("PATH", str(installed.bin), prepend=":")
    with one_core():  # commands of two processes are tested elsewhere
        done = installed.run(
            "python", "-c", EXECUTE, str(path), "executed.ipynb", folder=tmp_path, timeout=1200
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = outputs(nbformat.read(tmp_path / "executed.ipynb", as_version=4))
    # One line of a command may be several outputs.
    text = "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in found
    )
    assert "This model is tiny: its figures prove only the mechanics" in text
    for expected in RESULTS[path.stem]:
        assert expected in text
