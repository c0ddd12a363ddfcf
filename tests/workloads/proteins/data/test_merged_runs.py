"""Merging of many small runs: fewer and larger reads, the same rows."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.training.data import merged_runs, spill
from seqlm.training.data.limits import Limits
from seqlm.training.data.manifest import Manifest
from seqlm.training.data.merged_runs import finished_files, groups_to_merge, merge
from seqlm.training.data.spill import Run, SpillReader, cell_ranges, hash_all, write_run

NUM_RUNS = 12


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Runs of texts, several in each file. Some have equal keys."""
    monkeypatch.setattr(spill, "FILE_BYTES", 100_000)
    found = []
    for number in range(NUM_RUNS):
        ids = [f"{row % 37}-{row}".encode() for row in range(number * 10, number * 10 + 50)]
        texts = [b"M" * (len(one) * number % 17) for one in ids]
        keys = hash_all([one.partition(b"-")[0] for one in ids], 0)
        found.append(write_run(tmp_path, "records", keys, hash_all(ids, 1), [ids, texts]))
    return found


def rows_of(runs: list[Run], num_ranges: int) -> list[list[tuple[int, int, bytes, bytes]]]:
    """Return the rows of each range of cells, sorted."""
    found = []
    with SpillReader(runs) as reader:
        for bounds in cell_ranges(num_ranges):
            slices = reader.rows(*bounds)
            rows: list[tuple[int, int, bytes, bytes]] = []
            if slices:
                columns = [reader.column(slices, number) for number in range(2)]
                keys = np.concatenate([part.keys for part in slices]).tolist()
                tags = np.concatenate([part.tags for part in slices]).tolist()
                for row, (key, tag) in enumerate(zip(keys, tags, strict=True)):
                    texts = [
                        values[offsets[row] : offsets[row + 1]].tobytes()
                        for values, offsets in columns
                    ]
                    rows.append((key, tag, texts[0], texts[1]))
            found.append(sorted(rows))
    return found


@pytest.mark.parametrize("piece_bytes", [500, 1 << 20])
def test_merged_runs_have_the_same_rows(
    piece_bytes: int, runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_runs, "MOST_RUNS", 3)
    groups = groups_to_merge(runs, 1_000)
    assert [len(group) for group in groups] == [4, 4, 4]
    merged = [merge(tmp_path, "merged", group, piece_bytes) for group in groups]
    assert len({run.path for run in merged}) == 1 and merged[0].num_rows == 200
    for num_ranges in (1, 5, 8_192):
        assert rows_of(merged, num_ranges) == rows_of(runs, num_ranges)
    with SpillReader(merged) as reader:
        for part in reader.rows(0, spill.GRID_CELLS):
            assert (np.diff(part.keys.astype(np.float64)) >= 0).all(), "rows are sorted by key"


def test_merged_runs_need_fewer_reads(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_runs, "MOST_RUNS", 3)
    merged = [merge(tmp_path, "merged", group, 1_000) for group in groups_to_merge(runs, 1_000)]
    num_reads = 0
    pread = os.pread

    def counting(*arguments: int) -> bytes:
        nonlocal num_reads
        num_reads += 1
        return pread(*arguments)

    monkeypatch.setattr(spill.os, "pread", counting)
    counts = []
    for found in (runs, merged):
        num_reads = 0
        rows_of(found, 10)
        counts.append(num_reads)
    assert counts[1] <= 2 * len(merged) * 10
    assert counts[0] > 3 * counts[1]


def test_few_or_large_runs_are_not_merged(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    assert groups_to_merge(runs, 8_192) == []
    monkeypatch.setattr(merged_runs, "MOST_RUNS", 3)
    monkeypatch.setattr(merged_runs, "SMALL_READ_BYTES", 100)
    assert groups_to_merge(runs, 1) == []
    assert len(groups_to_merge(runs, 1_000)) == 3


def test_a_column_does_not_exceed_its_offsets(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_runs, "MOST_RUNS", 3)
    most = 2 * max(run.column_bytes[0] for run in runs)
    monkeypatch.setattr(merged_runs, "MOST_COLUMN_BYTES", most)
    groups = groups_to_merge(runs, 1_000)
    assert len(groups) > 3
    assert all(sum(run.column_bytes[0] for run in group) <= most for group in groups)


def test_files_are_finished_with_the_last_group_that_reads_them() -> None:
    a, b, c = (Run(name, 1, 0, ()) for name in "abc")
    assert list(finished_files([[a, b], [b, c], [c]])) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("has_members", [False, True])
def test_a_preparation_with_merged_runs_is_the_same(
    has_members: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("LAGVSERTIDPKQNF"), size=40)) for _ in range(300)]
    fasta = tmp_path / "a.fasta"
    fasta.write_text("".join(f">P{row}\n{text}\n" for row, text in enumerate(texts)))
    table = tmp_path / "table.tsv"
    table.write_text("".join(f"P{row}\tC{row // 3}\n" for row in range(300)))
    membership = table if has_members else None
    limits = Limits(block_bytes=1_000, piece_bytes=2_000, shard_bytes=2_000)

    def prepared(name: str) -> Manifest:
        return prepare(
            ProteinFiles([fasta], membership),
            tmp_path / name,
            seed=0,
            validation_fraction=0.1,
            test_fraction=0.1,
            execution=Execution(workers=1, limits=limits, progress=False),
        )

    expected = prepared("plain")
    monkeypatch.setattr(merged_runs, "MOST_RUNS", 2)
    found = prepared("merged")
    assert found == expected
    files = sorted(path.relative_to(tmp_path / "plain") for path in (tmp_path / "plain").rglob("*"))
    for file in files:
        if (tmp_path / "plain" / file).is_file():
            same = (tmp_path / "merged" / file).read_bytes()
            assert same == (tmp_path / "plain" / file).read_bytes()
