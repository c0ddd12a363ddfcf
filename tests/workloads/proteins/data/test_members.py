"""Cluster members: joined with their clusters, stored together, split together."""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from seqlm.proteins.alphabet import decode
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.training.data.limits import Limits
from seqlm.training.data.manifest import SPLITS, Manifest

SMALL = Limits(block_bytes=2000, piece_bytes=3000, shard_bytes=20_000, batch_tokens=2500)


def run(
    fasta: Path, table: Path, out: Path, *, workers: int = 1, limits: Limits = SMALL, **changes: Any
) -> Manifest:
    settings: dict[str, Any] = dict(seed=7, validation_fraction=0.2, test_fraction=0.1)
    execution = Execution(workers=workers, limits=limits, progress=False)
    return prepare(
        ProteinFiles([fasta], table), out, execution=execution, **{**settings, **changes}
    )


def batches(folder: Path, split: str) -> list[list[tuple[str, str, str, int]]]:
    """(id, sequence, cluster, cluster_size) of every row of every record batch of a split."""
    found = []
    for shard in sorted((folder / split).glob("*.arrow")):
        with pa.memory_map(str(shard)) as source:
            for batch in pa.ipc.open_stream(source):
                columns = [
                    batch[name].to_pylist() for name in ("id", "tokens", "cluster", "cluster_size")
                ]
                rows = zip(*columns, strict=True)
                found.append([(name, decode(t), cluster, size) for name, t, cluster, size in rows])
    return found


@pytest.fixture
def clusters(proteins) -> dict[str, str]:
    """Cluster of each of 400 members: sizes from 1 to over 100."""
    names = list(proteins(400))
    return {
        name: f"UniRef50_C{int(number**0.7) if number < 300 else 0}"
        for number, name in enumerate(names)
    }


def write_table(path: Path, clusters: dict[str, str]) -> Path:
    path.write_text(
        "".join(f"{member}\t{cluster}\n" for member, cluster in reversed(clusters.items()))
    )
    return path


def test_members_of_a_cluster_stay_together(
    tmp_path: Path, proteins, write_fasta, clusters
) -> None:
    records = proteins(400)
    fasta = write_fasta(tmp_path / "m.fasta", records)
    manifest = run(fasta, write_table(tmp_path / "t.tsv", clusters), tmp_path / "out", workers=2)
    seen: dict[str, list[str]] = defaultdict(list)
    for split in SPLITS:
        number = 0
        for batch in batches(tmp_path / "out", split):
            at = 0
            while at < len(batch):
                _, _, cluster, size = batch[at]
                members = batch[at : at + size]
                # The whole cluster lies here: in this batch, contiguous, its size on the first row only.
                assert size >= 1
                assert [row[2] for row in members] == [cluster] * size
                assert [row[3] for row in members[1:]] == [0] * (size - 1)
                assert cluster not in seen
                seen[cluster] = [row[0] for row in members]
                assert all(records[name] == sequence for name, sequence, _, _ in members)
                at += size
                number += 1
        assert manifest.splits[split].clusters == number
    assert {name: cluster for cluster, names in seen.items() for name in names} == clusters
    assert max(map(len, seen.values())) > 100
    assert [source.name for source in manifest.sources] == ["m.fasta", "t.tsv"]


def test_same_bytes_whatever_workers_and_order(
    tmp_path: Path, proteins, write_fasta, clusters
) -> None:
    records = proteins(400)
    results = []
    for name, order, changes in (
        ("a", records, {}),
        ("b", dict(reversed(records.items())), {"workers": 2}),
        ("c", records, {"limits": replace(SMALL, block_bytes=1 << 20, piece_bytes=1 << 20)}),
    ):
        fasta = write_fasta(tmp_path / f"{name}.fasta", order)
        manifest = run(fasta, write_table(tmp_path / "t.tsv", clusters), tmp_path / name, **changes)
        results.append(manifest.splits)
    assert results == results[:1] * 3


def test_split_follows_the_cluster_not_the_seed(
    tmp_path: Path, proteins, write_fasta, clusters
) -> None:
    fasta = write_fasta(tmp_path / "m.fasta", proteins(400))
    table = write_table(tmp_path / "t.tsv", clusters)
    found = []
    for seed in (1, 2):
        run(fasta, table, tmp_path / str(seed), seed=seed)
        found.append(
            {s: {row[2] for b in batches(tmp_path / str(seed), s) for row in b} for s in SPLITS}
        )
    assert found[0] == found[1]


@pytest.mark.long
def test_idmapping_selected_gives_the_same_as_two_columns(
    tmp_path: Path, proteins, write_fasta, clusters
) -> None:
    fasta = write_fasta(tmp_path / "m.fasta", proteins(400))
    two = run(fasta, write_table(tmp_path / "t.tsv", clusters), tmp_path / "two")
    rows = []
    for number, (member, cluster) in enumerate(clusters.items()):
        # UniProtKB-AC, ID, GeneID, RefSeq, GI, PDB, GO, UniRef100, UniRef90, UniRef50, and 12 more.
        for copy in range(1 + number % 3):
            front = [
                f"A{number}{copy}",
                "X_HUMAN",
                "",
                "NP_1; NP_2",
                "",
                "",
                "GO:0005737",
                "UniRef100_A",
            ]
            rows.append("\t".join([*front, member, cluster, "UPI0001", *[""] * 11]))
    rows.insert(5, "\t".join(["B1", *[""] * 21]))
    table = tmp_path / "idmapping_selected.tab.gz"
    table.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))
    mapped = run(fasta, table, tmp_path / "mapped")
    assert mapped.splits == two.splits


def test_equal_members_of_a_cluster_are_dropped(tmp_path: Path, write_fasta) -> None:
    records = {"b": "MKVLA", "a": "MKVLA", "c": "MKVLA", "d": "GGGG"}
    fasta = write_fasta(tmp_path / "m.fasta", records)
    table = write_table(tmp_path / "t.tsv", {"a": "X", "b": "X", "c": "Y", "d": "X"})
    manifest = run(fasta, table, tmp_path / "out", validation_fraction=0, test_fraction=0)
    rows = {row for batch in batches(tmp_path / "out", "train") for row in batch}
    assert rows == {("a", "MKVLA", "X", 2), ("d", "GGGG", "X", 0), ("c", "MKVLA", "Y", 1)}
    assert manifest.duplicates_dropped == 1


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a\tX\nb\tY\na\tZ\n", "puts member a in two clusters, X and Z"),
        ("a\tX\n", r"2 member\(s\) have no cluster in the membership table, the first are b, c"),
        ("a\tX\nb\tY\tZ\nc\tY\n", "t.tsv:2: 3 tab-separated columns, the rows before had 2"),
        ("a\tX\nb\t\nc\tY\n", "t.tsv:2: member or cluster is empty"),
        ("a X\nb Y\n", "t.tsv:1: a membership table has 2 tab-separated columns .* got 1"),
        ("a\tb\tc\n", "t.tsv:1: a membership table .* got 3"),
        (
            "\t" * 21 + "\na\tX\n",
            "t.tsv:2: 2 tab-separated columns, the rows before had more than 9",
        ),
        ("", "t.tsv is empty"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_table_leaves_nothing_behind(
    tmp_path: Path, write_fasta, table: str, message: str, workers: int
) -> None:
    fasta = write_fasta(tmp_path / "m.fasta", {"a": "MKV", "b": "LAG", "c": "GGG"})
    path = tmp_path / "t.tsv"
    path.write_bytes(table.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        run(fasta, path, tmp_path / "out", workers=workers)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["m.fasta", "t.tsv"]


def test_repeated_member_is_left_out(tmp_path: Path, write_fasta) -> None:
    fasta = write_fasta(tmp_path / "m.fasta", {"a": "MKV", "b": "LAG"})
    fasta.write_text(fasta.read_text() + ">a\nMKVLA\n>c\n\n")
    table = write_table(tmp_path / "t.tsv", {"a": "X", "b": "X"})
    manifest = run(fasta, table, tmp_path / "out")
    assert manifest.rejected == {"repeated id": 1, "empty": 1}
    rows = [row for split in SPLITS for batch in batches(tmp_path / "out", split) for row in batch]
    assert sorted(row[:2] for row in rows) == [("a", "MKV"), ("b", "LAG")]
    assert [source.name for source in manifest.sources] == ["m.fasta", "t.tsv"]
    listed = (tmp_path / "out" / "rejects.csv").read_text()
    assert (
        f'{fasta}:5,repeated id,"the id a was used before, at {fasta}:1; rename or remove one"'
        in listed
    )
