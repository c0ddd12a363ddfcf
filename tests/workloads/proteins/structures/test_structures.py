"""Structures are read as a record per protein chain, and files that cannot be read give one line."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from seqlm.proteins.inference.records import Protein, read_proteins
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.structures import parsing
from seqlm.proteins.structures.chains import entry_of, read_structure
from seqlm.proteins.structures.formats import StructureFormat, format_of_file
from seqlm.training.data.source_file import _noted
from tests.workloads.proteins.structures.structure_texts import ODD, as_mmcif, helix

gemmi = pytest.importorskip("gemmi", reason="the extra structures is not installed")

SEQUENCE = "MKTAYIAKQRQISFVKSHFSRQG"


def written(folder: Path, text: str, name: str = "file.pdb") -> Path:
    path = folder / name
    path.write_text(text)
    return path


FORMATS: dict[str, Callable[[str], str]] = {"PDB": str, "mmCIF": as_mmcif}


@pytest.mark.parametrize("name", FORMATS)
def test_a_chain_has_all_its_residues_and_the_rest_is_counted(tmp_path: Path, name: str) -> None:
    structure = read_structure(written(tmp_path, FORMATS[name](ODD)))
    [chain] = structure.chains
    assert (structure.entry, chain.id, chain.name) == ("9XYZ", "9XYZ_A", "A")
    assert chain.sequence == "XAMGSXWKX", "MSE is M, caps and residues without a parent are X"
    assert chain.numbers == ("", "1", "2", "", "", "", "10A", "11", "")
    assert "".join(map(str, chain.resolved.astype(int))) == "011000110"
    assert structure.counts == {
        Kind.MODIFIED: 1,
        Kind.UNKNOWN_RESIDUE: 3,
        Kind.UNRESOLVED: 5,
        Kind.ALTERNATIVE: 1,
        Kind.MODEL: 1,
        Kind.OTHER_POLYMER: 1,
        Kind.WATER: 2,
        Kind.LIGAND: 1,
    }
    # The second location of W is far away. K has no C-beta, so that nothing is known of its contacts.
    np.testing.assert_allclose(chain.beta[[1, 2, 6], 0], [2, 5, 9.9], atol=1e-6)
    assert chain.has_beta.sum() == 3
    near = {tuple(pair) for pair in np.argwhere(chain.contacts()).tolist()}
    assert near == {(1, 2), (2, 1), (1, 6), (6, 1), (2, 6), (6, 2)}


@pytest.mark.parametrize("name", FORMATS)
def test_commands_read_a_structure_by_its_content_and_say_what_they_read(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.file"
    path.write_bytes(gzip.compress(FORMATS[name](helix({"A": SEQUENCE, "b": "GAGA"})).encode()))
    _noted.clear()
    records = list(read_proteins([str(path)], tmp_path))
    assert all(isinstance(record, Protein) for record in records)
    assert [(one.id, one.sequence) for one in records] == [("9HLX_A", SEQUENCE), ("9HLX_b", "GAGA")]
    assert (
        f"{name} structure: 2 protein chains, named as by the author\n" in capsys.readouterr().err
    )


def test_a_folder_stands_for_its_structures_too(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    written(folder, helix({"A": SEQUENCE}), "a.pdb")
    written(folder, ">p\nMKT\n", "b.fasta")
    written(folder, "id,sequence\nx,MKT\n", "c.csv")
    assert [record.id for record in read_proteins([str(folder)], tmp_path)] == ["9HLX_A", "p"]


def test_without_seqres_gaps_are_not_filled_and_a_line_says_so(tmp_path: Path) -> None:
    whole = read_structure(written(tmp_path, helix({"A": SEQUENCE}, missing=(3, 4))))
    assert whole.chains[0].sequence == SEQUENCE and not whole.chains[0].resolved[3:5].any()
    assert "SEQRES" not in " ".join(whole.lines())
    bare = helix({"A": SEQUENCE}, missing=(3, 4), with_sequence=False)
    structure = read_structure(written(tmp_path, bare))
    assert structure.chains[0].sequence == SEQUENCE[:3] + SEQUENCE[5:]
    assert structure.chains[0].resolved.all()
    assert "no SEQRES fits the chains 'A', so unresolved residues" in " ".join(structure.lines())
    # SEQRES of another protein is not taken.
    other = helix({"A": "W" * 23}).split("ATOM")[0] + bare[bare.index("ATOM") :]
    assert "W" not in read_structure(written(tmp_path, other)).chains[0].sequence


def test_entries_without_a_name_are_named_after_their_file(tmp_path: Path) -> None:
    text = helix({"A": SEQUENCE}).partition("\n")[2]
    path = tmp_path / "my.model.pdb.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert read_structure(path).chains[0].id == "my.model_A"
    lines = [line for line in text.splitlines() if "SEQRES" not in line]
    without_chain = "\n".join(line[:21] + " " + line[22:] for line in lines)
    assert read_structure(written(tmp_path, without_chain, "x.ent")).chains[0].id == "x"
    assert entry_of(Path("a/.pdb")) == ".pdb"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HEADER    PLANT PROTEIN\n", StructureFormat.PDB),
        ("ATOM      1  CA  ALA A   1\n", StructureFormat.PDB),
        ("MODEL        1\n", StructureFormat.PDB),
        ("PARENT N/A\n", StructureFormat.PDB),
        ("HET    MSE  L  11       5\n", StructureFormat.PDB),
        ("DBREF1 1ABC A    1   10  UNP\n", StructureFormat.PDB),
        ("HETERO\tsequence\n", None),
        ("\n# made by a program\ndata_1CRN\n#\n", StructureFormat.MMCIF),
        ("# STOCKHOLM 1.0\n", None),
        ("model,atom\n1,2\n", None),
        ("ATOMIC\tsequence\n", None),
        (">data_x\nMKT\n", None),
    ],
)
def test_the_content_decides_on_the_format(
    tmp_path: Path, text: str, expected: StructureFormat | None
) -> None:
    assert format_of_file(written(tmp_path, text, "x.csv")) is expected


ATOM_TAGS = (
    "group_PDB id type_symbol label_atom_id label_alt_id label_comp_id label_asym_id label_seq_id "
    "Cartn_x Cartn_y Cartn_z auth_seq_id auth_asym_id pdbx_PDB_model_num"
)
LOOP = "\n".join(["data_x", "loop_", *(f"_atom_site.{name}" for name in ATOM_TAGS.split())])


def atoms(
    number: int, chain: str = "A", model: str = "1", x: str = "1.0", residue: str = "{n}"
) -> str:
    """Return an mmCIF file with one atom of alanine in each residue."""
    row = f"ATOM {{n}} C CA . ALA {chain} {residue} {x} 0 0 {residue} {chain} {model}"
    return "\n".join([LOOP, *(row.format(n=n) for n in range(1, number + 1)), ""])


HOSTILE = {
    "chains": (lambda: atoms(100_000, chain="C{n}"), r"has 100,000 chains; allowed are 10,000"),
    "residues": (lambda: atoms(60_000), r"60,000 residues in one chain; allowed are 50,000"),
    "models": (lambda: atoms(20_000, model="{n}"), r"20,000 models; allowed are 10,000"),
    "NaN": (lambda: atoms(9, x="nan"), r"'CA' of residue 1 in chain 'A' .* no numbers; correct"),
    "no place": (lambda: atoms(9, x="?"), r"'CA' of residue 1 in chain 'A' .* no numbers; correct"),
    "tag twice": (
        lambda: "data_x\n_a 1\n_a 2\n",
        r"duplicate tag _a\); check it or fetch it again",
    ),
    "cut": (lambda: atoms(3)[:-9], r"cannot be read as a structure"),
    "no atoms": (lambda: "data_x\n_cell.length_a 1\n", r"has no coordinates \(_atom_site\)"),
    "short line": (
        lambda: "ATOM      1  CA\n",
        r"cannot be read as a structure \(Problem in line 1",
    ),
    "header": (lambda: "HEADER    X\n", r"has no protein chain\. Give a structure of a protein"),
    "DNA": (
        lambda: "\n".join(line for line in ODD.splitlines() if " A " not in line),
        r"no protein chain, but 1 further model, 1 chain of DNA, RNA or another polymer\. Give",
    ),
    "parts": (
        lambda: "".join(
            f"ATOM  {n % 99999:5d}  CA  ALA {'AB'[n % 2]}{n % 9999:4d}    "
            "   1.000   1.000   1.000  1.00 10.00           C\n"
            for n in range(20_000)
        ),
        r"20,000 parts of chains; allowed are 10,000",
    ),
}
"""Files that are refused, and the lines that say why."""


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_cannot_be_read_give_one_line(tmp_path: Path, name: str) -> None:
    text, message = HOSTILE[name]
    path = written(tmp_path, text(), "hostile")
    with pytest.raises(ValueError, match=f"^{path}.*{message}") as caught:
        read_structure(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_sequences_that_would_take_long_to_align_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "MAX_ALIGNED", 500)
    path = written(tmp_path, helix({"A": SEQUENCE}))
    with pytest.raises(ValueError, match=r"26 residues in SEQRES and 23 in a chain; .* may be 500"):
        read_structure(path)


def test_names_are_shown_as_they_are_written_and_cannot_break_lines(tmp_path: Path) -> None:
    loop = atoms(5, chain="'B\x1b C'")
    [record] = read_proteins([str(written(tmp_path, loop, "x.cif"))], tmp_path)
    assert not isinstance(record, Protein) and "control characters" in record.reason
    # Parents are those of gemmi's table, so that a file cannot name them in a circle.
    circle = "".join(
        f"MODRES 9XYZ {one} A    2  {other}  IN A CIRCLE\n"
        for one, other in (("MSE", "ZZZ"), ("ZZZ", "MSE"))
    )
    path = written(tmp_path, ODD.replace("SEQRES   1 A", f"{circle}SEQRES   1 A"))
    assert read_structure(path).chains[0].sequence == "XAMGSXWKX"
    # Two polymers of one chain have two ids.
    twice = helix({"A": SEQUENCE}) + helix({"A": SEQUENCE}).partition("ATOM")[2]
    ids = [chain.id for chain in read_structure(written(tmp_path, twice)).chains]
    assert len(set(ids)) == len(ids)


def test_large_and_irregular_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pdb.gz"
    path.write_bytes(gzip.compress(b"HEADER    X\n" + b"REMARK   1\n" * 400_000))
    with pytest.raises(
        ValueError, match=r"of more than 1 MiB; allowed are 1,024 MiB and 100 times"
    ):
        read_structure(path)
    monkeypatch.setattr(parsing, "MAX_EXPANDED_BYTES", 1 << 20)
    plain = written(tmp_path, "HEADER    X\n" + "REMARK   1\n" * 100_000)
    with pytest.raises(ValueError, match="of more than 1 MiB"):
        read_structure(plain)
    with pytest.raises(ValueError, match="is not a regular file"):
        read_structure(tmp_path)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_structure(tmp_path / "missing")
    with pytest.raises(ValueError, match="is no structure; give a file in PDB or mmCIF format"):
        read_structure(written(tmp_path, ">p\nMKT\n"))


def test_a_missing_gemmi_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, ODD)
    monkeypatch.setitem(sys.modules, "gemmi", None)
    with pytest.raises(
        ValueError, match=r"is a structure, and gemmi .* pip install 'seqlm\[structures\]'"
    ):
        list(read_proteins([str(path)], tmp_path))


def test_simulations_have_proteins_in_chains_of_many_molecules(tmp_path: Path) -> None:
    lines = helix({"A": "MHK"}, with_sequence=False).replace("HIS", "HSE").splitlines()
    atoms_of_protein = [line[:21] + " " + line[22:] for line in lines if line.startswith("ATOM")]
    others = [
        line[:12] + atom + line[16:22] + f"{number:4d}" + line[26:]
        for line in atoms_of_protein[:1]
        for number, atom in enumerate([" OW  SOL", " OW  SOL", "NA    NA"], start=4)
    ]
    others = [line[:12] + line[12:20].ljust(8) + line[24:] for line in others]
    path = written(tmp_path, "\n".join([*atoms_of_protein, *others, "END"]), "simulation.pdb")
    structure = read_structure(path)
    assert structure.sequences == {"simulation": "MHK"}
    assert "1 protein chain, named as by the author; left out" in next(structure.lines())
