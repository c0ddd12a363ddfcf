"""Predicted contacts are compared with structures: precisions by range, pictures, and errors."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from seqlm.proteins.contacts import head as contact_head
from seqlm.proteins.contacts.command import contacts
from seqlm.proteins.contacts.head import Chain, ContactHead
from seqlm.proteins.contacts.picture import comparison_figure
from seqlm.proteins.contacts.truth import described, precisions
from seqlm.proteins.model.pretrained import load_model
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from tests.workloads.proteins.inference.conftest import configured, here  # noqa: F401
from tests.workloads.proteins.inference.written import rows
from tests.workloads.proteins.structures.structure_texts import helix

SEQUENCE = "MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQ"
MISSING = (3, 4, 20)
RANGES = {"short": (6, 11), "medium": (12, 23), "long": (24, 99)}


def truth_of(length: int, seed: int = 1) -> Chain:
    rng = np.random.default_rng(seed)
    near = np.triu(rng.random((length, length)) < 0.3, 1)
    resolved = rng.random(length) > 0.2
    return Chain("a", "A" * length, "." * length, resolved, near | near.T)


def expected(
    near: np.ndarray, resolved: np.ndarray, scores: np.ndarray, bounds: tuple[int, int]
) -> dict[str, float]:
    """Return the precisions of one range, by counting pairs."""
    low, high = bounds
    pairs = [
        (i, j)
        for i, j in itertools.combinations(range(len(near)), 2)
        if low <= j - i <= high and resolved[i] and resolved[j]
    ]
    best = sorted(pairs, key=lambda pair: -scores[pair])
    counts = {"P@L": int(resolved.sum()), "P@L/5": int(resolved.sum() * 0.2)}
    return {name: float(np.mean([near[pair] for pair in best[:n]])) for name, n in counts.items()}


def test_ranges_without_pairs_have_no_precision() -> None:
    truth = truth_of(15)
    scores = np.random.default_rng(2).random((15, 15)).astype(np.float32)
    found = {one.range: one for one in precisions(truth, scores)}
    assert found["short"].shares == pytest.approx(
        expected(truth.contacts, truth.resolved, scores, RANGES["short"])
    )
    assert found["long"].num_pairs == 0 and found["long"].shares == {"P@L": None, "P@L/5": None}
    assert described(list(found.values())).endswith("long -")


def test_a_picture_has_the_prediction_above_and_the_structure_below() -> None:
    truth = truth_of(40)
    scores = np.random.default_rng(2).random((40, 40)).astype(np.float32)
    figure = comparison_figure("a", scores, truth, ["P@L 0.1"])
    predicted, known = (np.ma.asarray(image.get_array()) for image in figure.axes[0].images)
    upper = np.triu(np.ones((40, 40), dtype=bool), 1)
    assert (predicted.mask == ~upper).all() and (known.mask == upper).all()
    np.testing.assert_array_equal(predicted[upper], scores[upper])
    both = truth.resolved[:, None] & truth.resolved[None, :]
    assert ((known.data == 2) == ~both).all()
    assert ((known.data == 1) == (truth.contacts & both)).all()
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert sum(int(label.split(": ")[1]) for label in labels) == 40, "the L most probable pairs"


def contacts_in(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the contacts of chain A of a PDB file, and which residues are resolved."""
    length = len(SEQUENCE)
    places = np.full((length, 3), np.nan)
    for line in text.splitlines():
        wanted = "CA" if line[17:20] == "GLY" else "CB"
        if line.startswith("ATOM") and line[21] == "A" and line[12:16].strip() == wanted:
            values = [float(line[start : start + 8]) for start in (30, 38, 46)]
            places[int(line[22:26]) - 1] = values
    distances = np.linalg.norm(places[:, None] - places[None], axis=-1)
    return distances < 8, ~np.isnan(places[:, 0])


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    weights = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    contact_head.save(load_model(str(folder)), str(folder), ContactHead(weights, -1.0))
    return folder


@pytest.mark.long
def test_contacts_of_a_structure_are_compared_with_it(
    configured: Callable[..., RunFile],  # noqa: F811
    here: Processes,  # noqa: F811
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("gemmi", reason="the extra structures is not installed")
    structure = tmp_path / "x.pdb"
    structure.write_text(helix({"A": SEQUENCE, "B": SEQUENCE[:11]}, MISSING, rise=0.7))
    out = tmp_path / "contacts.csv"
    arguments = {"model": str(model), "output": str(out), "max_residues": 100}
    contacts(configured(input=[str(structure)], **arguments), here)
    printed = capsys.readouterr().out
    table = rows(tmp_path / "contacts.precision.csv")
    assert [(row["id"], row["range"]) for row in table] == [
        (f"9HLX_{chain}", kind) for chain in "AB" for kind in RANGES
    ]
    [matrix] = (tmp_path / "contacts").glob("9HLX_A-*.npz")
    scores = np.load(matrix)["contacts"]
    near, resolved = contacts_in(structure.read_text())
    for row in table[:3]:
        assert (row["length"], row["resolved"]) == ("45", "42")
        wanted = expected(near, resolved, scores, RANGES[row["range"]])
        assert {name: float(row[name]) for name in wanted} == pytest.approx(wanted, abs=1e-6)
    assert 0 < float(table[0]["P@L"]) < 1 and int(table[0]["contacts"]) > 0
    assert table[5]["pairs"] == "0" and table[5]["P@L"] == ""
    shown = ", ".join(f"{row['range']} {float(row['P@L']):.3f}" for row in table[:3])
    assert f"9HLX_A: P@L {shown}; P@L/5 short" in printed
    assert "mean of 2 proteins: P@L short" in printed
    summary = json.loads((tmp_path / "contacts.csv.json").read_text())

    # The same sequences as FASTA have no structure, so that the result is another one.
    fasta = tmp_path / "x.fasta"
    fasta.write_text(f">my protein\n{SEQUENCE}\n>other\n{SEQUENCE[::-1]}\n")
    with pytest.raises(ValueError, match=r"exists and is not from the same proteins"):
        contacts(configured(input=[str(fasta)], **arguments), here)
    contacts(configured(input=[str(fasta)], overwrite=True, **arguments), here)
    assert not (tmp_path / "contacts.precision.csv").exists()
    assert "structures" in summary

    # Named in the run file, a structure is found by the sequence.
    arguments |= {"structure": str(structure), "overwrite": True}
    contacts(configured(input=[str(fasta)], **arguments), here)
    ids = {row["id"] for row in rows(tmp_path / "contacts.precision.csv")}
    assert ids == {"my"}
    capsys.readouterr()
    contacts(configured(input=[str(fasta)], **arguments), here)
    assert "already exists" in (printed := capsys.readouterr().out) and "my: P@L" in printed

    fasta.write_text(f">other\n{SEQUENCE[::-1]}\n")
    expected_message = (
        r"inference\.structure: no chain of .*x\.pdb has the sequence of a protein of the input; it has "
        r"'9HLX_A' \(45 residues\), '9HLX_B' \(11 residues\)\. Give these sequences"
    )
    with pytest.raises(ValueError, match=expected_message):
        contacts(configured(input=[str(fasta)], **arguments), here)
