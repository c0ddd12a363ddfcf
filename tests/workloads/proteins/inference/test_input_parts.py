"""Files with the parsed input, from which processes take their parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seqlm.proteins.alphabet import encode
from seqlm.proteins.inference import records
from seqlm.proteins.inference.input_parts import InputParts
from seqlm.proteins.inference.records import InputKey, Protein, cut, key_of
from seqlm.proteins.reading.chains import ChainSpan
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import Reject


def protein(name: str, sequence: str, chains: tuple[ChainSpan, ...] = ()) -> Protein:
    return Protein(name, np.frombuffer(encode(sequence), np.uint8), f"{name}.fasta", chains)


RECORDS = [
    protein("a", "MAGV"),
    Reject(Kind.EMPTY, "a.fasta:3", 'has "no" sequence, or none', "e"),
    protein("ä b", "MKTAYIAK", (ChainSpan("H", 0, 3), ChainSpan("L", 5, 8))),
    Reject(Kind.CHARACTER, "a.fasta:9", "has a 7"),
    protein("c", "M"),
]


def are_equal(a: Protein, b: Protein) -> bool:
    same = (a.id, a.file, a.chains) == (b.id, b.file, b.chains)
    return same and np.array_equal(a.tokens, b.tokens)


def test_a_part_is_read_as_it_was_written(tmp_path: Path) -> None:
    results = tmp_path / "out.parquet.parts"
    files = InputParts(results)
    for part in cut(RECORDS, 10, "settings"):
        files.write(part)
        found = files.read(part.number, part.planned)
        assert all(map(are_equal, found.proteins, part.proteins))
        assert len(found.proteins) == len(part.proteins) == part.planned.num_proteins
        assert [one.cells for one in found.rejects] == [one.cells for one in part.rejects]
        files.drop(part.planned)
    assert part.number == 1, "there are two parts"
    [folder] = results.iterdir()
    assert list(folder.iterdir()) == []
    files.clear()
    assert not results.exists()


def test_parts_without_proteins_or_records(tmp_path: Path) -> None:
    files = InputParts(tmp_path)
    for found in ([RECORDS[1]], []):
        [part] = cut(found, 10, "")
        files.write(part)
        read = files.read(0, part.planned)
        assert read.proteins == [] and len(read.rejects) == len(found)


def test_results_stay_when_the_input_is_cleared(tmp_path: Path) -> None:
    files = InputParts(tmp_path)
    [part] = cut(RECORDS, 100, "")
    files.write(part)
    (tmp_path / part.planned.file).touch()
    files.clear()
    assert [path.name for path in tmp_path.iterdir()] == [part.planned.file]


def test_the_key_of_an_input_is_that_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summaries of earlier versions have the key of parts of that many residues."""
    for number in (1, 3, 5, 100):
        monkeypatch.setattr(records, "KEY_RESIDUES", number)
        for found in (RECORDS, RECORDS[:1], []):
            key = InputKey()
            assert list(key.adding(found)) == found
            expected = key_of(part.planned for part in cut(found, number, ""))
            assert key.value == expected
