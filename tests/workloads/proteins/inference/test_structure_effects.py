"""Mean effects of variants in the B-factors of a copy of a structure."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from seqlm.proteins.inference.variants import variants
from seqlm.runs.run_file import RunFile
from seqlm.training.processes import Processes
from tests.workloads.proteins.inference.conftest import configured, here  # noqa: F401
from tests.workloads.proteins.structures.structure_texts import as_mmcif, helix

gemmi = pytest.importorskip("gemmi", reason="the extra structures is not installed")

SEQUENCE = "MKTAYG"


@pytest.mark.long
def test_positions_of_a_structure_get_their_mean_effects(
    configured: Callable[..., RunFile],  # noqa: F811
    here: Processes,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    structure = tmp_path / "x.cif"
    # Chains A and B are the protein. The first residue of each is unresolved, and numbers begin at 100.
    text = helix({"A": SEQUENCE, "B": SEQUENCE, "C": "GAGAG"}, missing=(0,), first_number=100)
    structure.write_text(as_mmcif(text))
    fasta = tmp_path / "x.fasta"
    fasta.write_text(f">p\n{SEQUENCE}\n>other\nWWWW\n")
    out = tmp_path / "out.csv"
    arguments = {"input": [str(fasta)], "output": str(out), "first_position": 7}
    variants(configured(structure=str(structure), **arguments), here)
    copy = tmp_path / "out.structure.cif"
    assert (
        f"wrote {copy}: mean effect of each position in the B-factors of 10 residues of the chains 'A', 'B'; "
        "0.00 for all other atoms"
    ) in capsys.readouterr().out
    with (tmp_path / "out.positions.csv").open() as file:
        means = [float(row["mean_score"]) for row in csv.DictReader(file) if row["id"] == "p"]
    model = gemmi.read_structure(str(copy))[0]
    for name in "AB":
        found = [residue[0].b_iso for residue in model[name]]
        assert found == pytest.approx(means[1:], abs=0.006), "the first residue is unresolved"
    assert {atom.b_iso for residue in model["C"] for atom in residue} == {0.0}

    # The table exists: the copy alone is written again.
    copy.unlink()
    variants(configured(structure=str(structure), **arguments), here)
    assert copy.exists() and "already exists" in capsys.readouterr().out

    table = tmp_path / "m.csv"
    table.write_text("mutation\nM1A\n")
    for wrong, message in (
        ({"mutations": str(table)}, "inference.structure: got .* with inference.mutations"),
        ({"input": [str(table)]}, "no column that is known for sequences"),
    ):
        with pytest.raises(ValueError, match=message):
            variants(configured(structure=str(structure), **{**arguments, **wrong}), here)
    fasta.write_text(">other\nWWWW\n")
    with pytest.raises(ValueError, match=r"inference\.structure: no chain of .*x\.cif has the seq"):
        variants(configured(structure=str(structure), **arguments), here)
    with pytest.raises(ValueError, match=r"inference\.structure: .*x\.fasta is no structure"):
        variants(configured(structure=str(fasta), **arguments), here)
