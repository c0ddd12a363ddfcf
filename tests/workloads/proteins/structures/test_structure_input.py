"""Every reader of proteins reads structures: preparation, tables of tasks, and the check of files."""

from __future__ import annotations

import hashlib
import itertools
from contextlib import closing
from pathlib import Path

import pytest

import seqlm
from seqlm.proteins.check.file_check import NamedByUser, check_file
from seqlm.proteins.config import TaskConfig
from seqlm.proteins.data.inputs import ProteinInput
from seqlm.proteins.data.sources import is_proteins
from seqlm.proteins.finetune.table import read_records
from seqlm.training.data.limits import Limits
from tests.workloads.proteins.structures.structure_texts import helix

pytest.importorskip("gemmi", reason="the extra structures is not installed")

SEQUENCE = "MKTAYIAKQRQISFVKSHFSRQG"
MISSING = (0, 5)


@pytest.fixture
def structure(tmp_path: Path) -> Path:
    path = tmp_path / "x.pdb"
    path.write_text(helix({"A": SEQUENCE, "B": SEQUENCE[:9]}, MISSING))
    return path


def test_the_preparation_reads_the_chains(structure: Path) -> None:
    assert is_proteins(structure)
    source = ProteinInput(structure, "x")
    with closing(source.reader(itertools.count(1))) as reader:
        [block] = reader.blocks(Limits.for_workers(1))
    assert block.ids == [b"9HLX_A", b"9HLX_B"]
    assert block.sequences == [SEQUENCE.encode(), SEQUENCE[:9].encode()]
    assert source.where(2) == f"{structure} row 2"


def test_a_task_has_labels_beside_structures_and_masks_unresolved_residues(
    structure: Path, tmp_path: Path
) -> None:
    labels = tmp_path / "labels.fasta"
    labels.write_text(f">9HLX_A\n{'H' * len(SEQUENCE)}\n>9HLX_B\n{'C' * 9}\n")
    table = read_records(TaskConfig(kind="residue"), [structure], labels)
    assert [record.id for record in table.records] == ["9HLX_A", "9HLX_B"]
    assert table.task.mask_columns == ("resolved",)
    mask = table.records[0].cells["resolved"]
    assert isinstance(mask, str)
    assert [place for place, digit in enumerate(mask) if digit == "0"] == list(MISSING)


def test_a_check_describes_the_structure(structure: Path) -> None:
    lines = list(check_file(structure, NamedByUser()).lines())
    assert lines == [
        str(structure),
        "  a PDB structure, UTF-8",
        "  proteins: read 2, used 2, left out 0",
        "  residues: 32, lengths 9 to 23",
        "  1 short (use: embed, predict, variants, data, finetune)",
        "    row 2 '9HLX_B'",
    ]


def test_python_reads_structures_and_scores_contacts(structure: Path) -> None:
    found = seqlm.read_structure(str(structure))
    assert found.sequences == {"9HLX_A": SEQUENCE, "9HLX_B": SEQUENCE[:9]}
    chain = found.chains[0]
    table = seqlm.contact_precision(chain, chain.contacts())
    assert list(table["range"]) == ["short", "medium", "long"]
    assert table["contacts"][0] == 0 == table["P@L"][0], (
        "a helix has no contacts six residues apart"
    )
    near = chain.contacts()
    assert near[6, 9] and not near[5, 6], "residue 5 is not resolved"
    with pytest.raises(
        ValueError, match=r"probabilities: got the shape \(3, 3\); expected \(23, 23\)"
    ):
        seqlm.contact_precision(chain, near[:3, :3])


def test_the_bundled_structure_is_that_of_its_readme() -> None:
    path = seqlm.sample_structure()
    readme = (path.parent / "README.md").read_text()
    assert hashlib.sha256(path.read_bytes()).hexdigest() in readme
    [chain] = seqlm.read_structure(path).chains
    assert chain.sequence == "RPDFCLEPPYTGPCKARIIRYFYNAKAGLCQTFVYGGCRAKRNNFKSAEDCMRTCGGA"
    for one, other in ((5, 55), (14, 38), (30, 51)):
        assert chain.sequence[one - 1] == "C" == chain.sequence[other - 1]
        assert chain.contacts()[one - 1, other - 1], "the disulfide bonds"
