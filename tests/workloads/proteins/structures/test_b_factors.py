"""Values in the B-factors of copies of structures, as gemmi reads them back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from seqlm.proteins.structures.b_factors import Residue, values_of, write_copy
from seqlm.proteins.structures.chains import read_structure
from tests.workloads.proteins.structures.structure_texts import ODD, as_mmcif, helix

gemmi = pytest.importorskip("gemmi", reason="the extra structures is not installed")

FORMATS: dict[str, Callable[[str], str]] = {".pdb": str, ".cif": as_mmcif}


@pytest.mark.parametrize("suffix", FORMATS)
def test_values_come_back_and_nothing_else_changes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_text(FORMATS[suffix](ODD))
    structure = read_structure(path)
    [chain] = structure.chains
    values = values_of(chain, {place: -0.5 * place for place in range(len(chain.sequence))})
    assert values == {
        Residue("A", "1"): -0.5,
        Residue("A", "2"): -1.0,
        Residue("A", "10A"): -3.0,
        Residue("A", "11"): -3.5,
    }, "unresolved residues have no atoms"
    copied = write_copy(structure, tmp_path / f"copy{suffix}", values)
    assert (copied.num_residues, copied.chains) == (4, ("A",))
    assert "B-factors of 4 residues of the chains 'A'; 0.00 for all other atoms" in copied.line("x")
    before = gemmi.read_structure(str(path))
    after = gemmi.read_structure(str(copied.path))
    assert len(after) == 2, "all models"
    num_atoms = 0
    for old, new in zip(before, after, strict=True):
        for one, other in zip(old.all(), new.all(), strict=True):
            number = str(one.residue.seqid)
            assert other.atom.b_iso == pytest.approx(
                values.get(Residue(one.chain.name, number), 0.0)
            )
            assert one.atom.pos.dist(other.atom.pos) == 0 and str(one) == str(other)
            num_atoms += 1
    assert num_atoms == ODD.count("ATOM  ") + ODD.count("HETATM")
    # The rest of the text is that of the original.
    names = [line[:54] for line in path.read_text().splitlines() if suffix == ".pdb"]
    assert names == [line[:54] for line in copied.path.read_text().splitlines() if names]
    assert read_structure(copied.path).chains[0].sequence == chain.sequence


def test_values_are_limited_to_the_column_and_lines_may_be_short(tmp_path: Path) -> None:
    path = tmp_path / "x.pdb"
    lines = [
        line[:54] if line.startswith("ATOM") else line for line in helix({"A": "MKT"}).split("\n")
    ]
    path.write_bytes("\r\n".join(lines).encode())
    structure = read_structure(path)
    values = {Residue("A", "1"): -1234.5, Residue("A", "2"): 12345.6}
    copied = write_copy(structure, tmp_path / "copy.pdb", values)
    found = gemmi.read_structure(str(copied.path))[0]["A"]
    assert [residue[0].b_iso for residue in found] == pytest.approx([-99.99, 999.99, 0.0])
    assert copied.path.read_bytes().count(b"\r\n") == len(lines) - 1


def test_numbers_above_9999_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x.pdb"
    text = helix({"A": "MKT"}, with_sequence=False)
    path.write_text(text.replace(" A   2 ", " AA000 "))  # 10,000 in hybrid-36
    structure = read_structure(path)
    assert structure.chains[0].numbers == ("1", "10000", "3")
    values = values_of(structure.chains[0], {1: -2.5})
    copied = write_copy(structure, tmp_path / "copy.pdb", values)
    found = gemmi.read_structure(str(copied.path))[0]["A"]
    assert [residue[0].b_iso for residue in found] == [0.0, -2.5, 0.0]


def test_a_file_without_authors_names_or_b_factors_gets_them(tmp_path: Path) -> None:
    path = tmp_path / "x.cif"
    tags = "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id label_seq_id"
    header = [f"_atom_site.{tag}" for tag in [*tags.split(), "Cartn_x", "Cartn_y", "Cartn_z"]]
    atoms = [f"ATOM {n} C CA . ALA Q {n} {n}.0 0 0" for n in range(1, 4)]
    path.write_text("\n".join(["data_x", "loop_", *header, *atoms, ""]))
    structure = read_structure(path)
    values = values_of(structure.chains[0], {1: -2.5})
    assert set(values) == {Residue("Q", "2")}
    copied = write_copy(structure, tmp_path / "copy.cif", values)
    found = gemmi.read_structure(str(copied.path))[0]["Q"]
    assert [residue[0].b_iso for residue in found] == [0.0, -2.5, 0.0]
