"""Inputs with many rejected records: any number is listed, and a wrong input ends early."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlm.proteins.alphabet import encode
from seqlm.proteins.inference import records
from seqlm.proteins.inference.mutation_table import (
    MutationRow,
    MutationTable,
    with_rejected_mutations,
)
from seqlm.proteins.inference.output import Output
from seqlm.proteins.inference.records import Protein, cut, records_of
from seqlm.proteins.reading import first_items
from seqlm.proteins.reading.first_items import FIRST_ITEMS
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import COLUMNS, Reject
from seqlm.runs.run_file import RunFile

NUMBER_PER_PART = 5_000
"""Rejects of a part in the test of the footer."""
DNA = "ACGT" * 8


def rejects(number: int, start: int = 0) -> list[Reject]:
    return [
        Reject(Kind.EMPTY, f"x.fasta:{line}", 'has "no" sequence, or none')
        for line in range(start, start + number)
    ]


@pytest.fixture
def output(configured: Callable[..., RunFile], tmp_path: Path) -> Output:
    return Output(configured(input=["x.fasta"], output=str(tmp_path / "x.parquet")), "embed")


def listed(output: Output) -> list[tuple[str, ...]]:
    with output.rejects.open(newline="") as stream:
        header, *rows = csv.reader(stream)
    assert tuple(header) == COLUMNS
    return [tuple(row) for row in rows]


def test_the_table_of_a_part_does_not_grow_with_its_rejects(output: Output) -> None:
    table = pa.table({"id": ["a"]})
    output.write_part("000000-a.parquet", table, rejects(1))
    output.write_part("000001-b.parquet", table, rejects(NUMBER_PER_PART))
    output.write_part("000002-c.parquet", table, [])
    sizes = {path.stat().st_size for path in output.folder.glob("*.parquet")}
    assert len(sizes) == 1
    output.join(["000000-a.parquet", "000001-b.parquet", "000002-c.parquet"], {"key": "k"})
    expected = [*rejects(1), *rejects(NUMBER_PER_PART)]
    assert listed(output) == [reject.cells for reject in expected]
    assert pq.read_table(output.path).to_pydict() == {"id": ["a"] * 3}
    assert not output.folder.exists()


def test_a_result_without_rejects_has_no_list(output: Output) -> None:
    output.write_part("000000-a.parquet", pa.table({"id": ["a"]}), [])
    output.join(["000000-a.parquet"], {"key": "k"})
    assert output.path.exists() and not output.rejects.exists()


def test_parts_of_an_earlier_version_are_joined(output: Output) -> None:
    """Earlier versions wrote the rejects into the metadata of the table."""
    table = pa.table({"id": ["a"]})
    stored = json.dumps([reject.cells for reject in rejects(3)]).encode()
    output.folder.mkdir(parents=True)
    pq.write_table(
        table.replace_schema_metadata({b"rejects": stored}), output.folder / "000000-a.parquet"
    )
    output.write_part("000001-b.parquet", table, rejects(2, start=3))
    output.join(["000000-a.parquet", "000001-b.parquet"], {"key": "k"})
    assert listed(output) == [reject.cells for reject in rejects(5)]


def test_parts_end_after_a_number_of_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PART_REJECTS", 4)
    protein = Protein("a", np.frombuffer(encode("MAG"), np.uint8), "x.fasta")
    parts = list(cut([*rejects(9), protein, *rejects(1)], 100, ""))
    assert [len(part.rejects) for part in parts] == [4, 4, 2]
    assert [len(part.proteins) for part in parts] == [0, 0, 1]
    assert len({part.planned.file for part in parts}) == 3


def record_lines(sequences: Iterator[str]) -> str:
    return "".join(f">r{number}\n{sequence}\n" for number, sequence in enumerate(sequences))


def read(config: RunFile) -> tuple[list[Protein | Reject], str]:
    """Return the records of the input, and the error that ends them; empty if none does."""
    found: list[Protein | Reject] = []
    try:
        for record in records_of(config):
            found.append(record)
    except ValueError as error:
        return found, str(error)
    return found, ""


def test_an_input_that_starts_with_no_protein_ends_early(
    configured: Callable[..., RunFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_items, "FIRST_ITEMS", 100)
    monkeypatch.setattr(records, "FIRST_ITEMS", 100)
    path = tmp_path / "genes.fna"
    path.write_text(record_lines(iter([DNA] * 150)))
    found, error = read(configured(input=[str(path)]))
    assert len(found) == 99
    assert "genes.fna: the first 100 records are no proteins" in error
    assert "genes.fna: record r0 looks like DNA or RNA" in error


@pytest.mark.parametrize(
    ("sequences", "num_rejects"),
    [
        # A protein among the first records shows that the file is meant.
        ([*[DNA] * 7, "MAGVL", *[DNA] * 20], 27),
        # Lengths end no command.
        ([*["MAGVLSERT"] * 20, "MAGVL"], 20),
        ([*[DNA] * 7, "MAGVLSERT", *[DNA] * 20, "MAGVL"], 28),
    ],
)
def test_other_inputs_are_read_to_their_end(
    sequences: list[str],
    num_rejects: int,
    configured: Callable[..., RunFile],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_items, "FIRST_ITEMS", 8)
    path = tmp_path / "x.fasta"
    path.write_text(record_lines(iter(sequences)))
    found, error = read(configured(input=[str(path)], max_residues=8, long_proteins="reject"))
    assert error == ""
    assert sum(isinstance(record, Reject) for record in found) == num_rejects


def mutations(names: Iterator[str]) -> MutationTable:
    rows = [MutationRow(f"m.csv:{line}", None, name) for line, name in enumerate(names, start=2)]
    return MutationTable(rows)


def with_mutations(names: list[str]) -> tuple[list[Protein | Reject], str]:
    """Return what is read of a protein and mutations, and the error that ends it; empty if none does."""
    protein = Protein("a", np.frombuffer(encode("MAG" * 100), np.uint8), "x.fasta")
    found: list[Protein | Reject] = []
    try:
        for record in with_rejected_mutations([protein], mutations(iter(names))):
            found.append(record)
    except ValueError as error:
        return found, str(error)
    return found, ""


def test_a_table_of_another_protein_ends_early() -> None:
    wrong = ["V3L", "V301L"] * (FIRST_ITEMS // 2)
    found, error = with_mutations([*wrong, "A2L"])
    assert len(found) == FIRST_ITEMS, "the protein, and all rejects but the last one"
    assert error.startswith(
        "inference.mutations: the first 10,000 mutations have other residues than their proteins"
    )
    assert "m.csv:2: V3L: a has G at position 3" in error


def test_a_table_with_one_mutation_that_fits_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_items, "FIRST_ITEMS", 8)
    found, error = with_mutations([*["V3L"] * 7, "A2L", *["V3L"] * 20])
    assert len(found) == 28 and error == ""


def test_mutations_that_cannot_be_read_do_not_end_a_table_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_items, "FIRST_ITEMS", 8)
    found, error = with_mutations(["?"] * 20)
    assert len(found) == 21
    assert error.startswith("inference.mutations: nothing can be used. mutations: read 20, used 0")
