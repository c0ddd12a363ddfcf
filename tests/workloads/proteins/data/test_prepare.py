"""Properties of a prepared folder: nothing lost, the same bytes whatever the circumstances, no copies."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest

from seqlm.proteins.alphabet import TOKENS, encode
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import PROTEINS, ProteinFiles
from seqlm.training.data.limits import Limits
from seqlm.training.data.manifest import PACKAGE_VERSION, SPLITS, Manifest
from seqlm.training.data.spill import SpillReader

Records = dict[str, str]
SMALL = Limits(block_bytes=2000, piece_bytes=3000, shard_bytes=20_000, batch_tokens=2500)


def run(
    paths: Path | list[Path], out: Path, *, source_names: list[str] | None = None, **changes: Any
) -> Manifest:
    fasta = [paths] if isinstance(paths, Path) else paths
    execution: dict[str, Any] = dict(workers=1, progress=False, limits=SMALL)
    settings: dict[str, Any] = dict(seed=7, validation_fraction=0.2, test_fraction=0.1)
    for name, value in changes.items():
        (execution if name in execution else settings)[name] = value
    files = ProteinFiles(fasta, names=source_names)
    return prepare(files, out, execution=Execution(**execution), **settings)


def contents(folder: Path) -> dict[str, str]:
    """Checksum of every file of a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def split_of(
    folder: Path, read_split: Callable[[Path, str], list[tuple[str, str]]]
) -> dict[str, str]:
    return {name: split for split in SPLITS for name, _ in read_split(folder, split)}


def test_every_record_arrives_once(tmp_path: Path, proteins, write_fasta, read_split) -> None:
    records = proteins(500)
    manifest = run(write_fasta(tmp_path / "a.fasta", records), tmp_path / "out")
    arrived = [row for split in SPLITS for row in read_split(tmp_path / "out", split)]
    assert sorted(arrived) == sorted(records.items())
    assert manifest.records == 500
    assert manifest.residues == sum(map(len, records.values()))
    assert len(manifest.splits["train"].shards) > 1
    assert 0.1 < manifest.splits["validation"].records / 500 < 0.3
    assert 0.04 < manifest.splits["test"].records / 500 < 0.2
    # Shuffled: the order is not that of the file, nor of the lengths.
    order = [int(name[1:]) for name, _ in read_split(tmp_path / "out", "train")]
    assert abs(np.corrcoef(order, range(len(order)))[0, 1]) < 0.2


def test_manifest_describes_the_shards(tmp_path: Path, proteins, write_fasta, read_split) -> None:
    out = tmp_path / "out"
    source = write_fasta(tmp_path / "a.fasta", proteins(300))
    manifest = run(source, out, source_names=["uniref50"])
    assert manifest == Manifest.load(out)
    assert manifest.vocabulary == TOKENS
    assert manifest.sources[0].name == "uniref50"
    assert manifest.sources[0].sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    files = {shard.file: shard for split in manifest.splits.values() for shard in split.shards}
    checksums = contents(out)
    del checksums["manifest.json"]
    assert {name: shard.sha256 for name, shard in files.items()} == checksums
    for name, split in manifest.splits.items():
        lengths = [len(sequence) for _, sequence in read_split(out, name)]
        assert split.records == split.clusters == len(lengths)
        assert split.residues == sum(lengths)
        counts = np.bincount(np.array(lengths) // 64)
        assert split.length_histogram == {
            str(64 * n): c for n, c in enumerate(counts.tolist()) if c
        }


def test_package_version_is_that_of_the_project() -> None:
    root = Path(__file__).parents[4]
    assert (
        tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
        == PACKAGE_VERSION
    )


def test_same_bytes_whatever_workers_order_and_memory(
    tmp_path: Path, proteins, write_fasta
) -> None:
    records = proteins(400)
    records |= {f"copy{n}": records[f"p{n}"] for n in range(0, 400, 10)}
    items = list(records.items())
    random.Random(1).shuffle(items)
    one = dict(items[:150])
    two = dict(items[150:])
    roomy = replace(SMALL, block_bytes=1 << 20, piece_bytes=1 << 20)
    results = []
    for name, parts, changes in (
        ("a", [records], {}),
        ("b", [dict(items)], {"limits": roomy}),
        ("c", [dict(items)], {"workers": 3}),
        ("d", [one, two], {}),
        ("e", [two, one], {"workers": 2}),
    ):
        paths = [write_fasta(tmp_path / f"{name}{n}.fasta", part) for n, part in enumerate(parts)]
        run(paths, tmp_path / name, **changes)
        checksums = contents(tmp_path / name)
        # The manifest names the sources, which differ here.
        del checksums["manifest.json"]
        results.append(checksums)
    assert len(results[0]) > 3
    assert results == results[:1] * len(results)


def test_split_of_a_protein_is_stable(tmp_path: Path, proteins, write_fasta, read_split) -> None:
    records = proteins(300)
    run(write_fasta(tmp_path / "a.fasta", records), tmp_path / "a")
    before = split_of(tmp_path / "a", read_split)
    more = proteins(300, seed=5, prefix="new") | dict(reversed(records.items()))
    run(write_fasta(tmp_path / "b.fasta", more), tmp_path / "b", seed=99, workers=2)
    after = split_of(tmp_path / "b", read_split)
    assert {name: after[name] for name in before} == before
    # Pinned: a release that moved proteins between splits would leak test proteins into training.
    pinned = [name for name in sorted(before) if before[name] == "test"][:5]
    assert pinned == ["p101", "p107", "p114", "p125", "p130"]


def test_seed_changes_the_order(tmp_path: Path, proteins, write_fasta, read_split) -> None:
    path = write_fasta(tmp_path / "a.fasta", proteins(100))
    orders = []
    for seed in (1, 2):
        run(path, tmp_path / str(seed), seed=seed)
        orders.append(read_split(tmp_path / str(seed), "train"))
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_equal_sequences_keep_the_smallest_id(
    tmp_path: Path, proteins, write_fasta, read_split
) -> None:
    records = proteins(100)
    copies = {f"o{n}": records[f"p{n}"].lower() for n in range(30)} | {"z": records["p50"]}
    paths = [write_fasta(tmp_path / "b.fasta", copies), write_fasta(tmp_path / "a.fasta", records)]
    manifest = run(paths, tmp_path / "out")
    arrived = dict(row for split in SPLITS for row in read_split(tmp_path / "out", split))
    assert manifest.duplicates_dropped == 31
    assert set(arrived) == {f"o{n}" for n in range(30)} | {f"p{n}" for n in range(30, 100)}


def test_equal_hashes_are_not_equal_sequences(
    tmp_path, proteins, write_fasta, read_split, monkeypatch
) -> None:
    # All keys equal: everything meets in one group, and only equal bytes may be dropped.
    monkeypatch.setattr("xxhash.xxh3_64_digest", lambda value, seed: b"\x10" + bytes(7))
    records = proteins(60)
    records["copy"] = records["p3"]
    manifest = run(write_fasta(tmp_path / "a.fasta", records), tmp_path / "out")
    arrived = [row for split in SPLITS for row in read_split(tmp_path / "out", split)]
    del records["p3"]
    assert arrived == sorted(records.items())
    assert manifest.duplicates_dropped == 1


def test_a_sequence_repeated_very_often(tmp_path: Path) -> None:
    path = tmp_path / "a.fasta"
    path.write_text("".join(f">r{n:05d}\nMKVLAGG\n" for n in range(20_000)))
    manifest = run(path, tmp_path / "out", limits=replace(SMALL, block_bytes=100_000))
    assert (manifest.records, manifest.duplicates_dropped) == (1, 19_999)


def test_shard_larger_than_memory_is_gathered_in_pieces(
    tmp_path: Path, proteins, write_fasta, monkeypatch
) -> None:
    """Pieces bound what is read back at a time, and do not change the result."""
    source = write_fasta(tmp_path / "a.fasta", proteins(300))
    one_shard = replace(SMALL, shard_bytes=1 << 30)
    run(source, tmp_path / "whole", limits=replace(one_shard, piece_bytes=1 << 30))
    sizes = []
    read = SpillReader.column

    def counting(self: SpillReader, *arguments: Any) -> Any:
        values, offsets = read(self, *arguments)
        sizes.append(values.nbytes)
        return values, offsets

    monkeypatch.setattr(SpillReader, "column", counting)
    run(source, tmp_path / "pieces", limits=one_shard)
    assert len(sizes) > 5
    assert max(sizes) <= one_shard.piece_bytes
    assert contents(tmp_path / "pieces") == contents(tmp_path / "whole")


def test_record_batches_have_the_promised_size(tmp_path: Path, proteins, write_fasta) -> None:
    manifest = run(write_fasta(tmp_path / "a.fasta", proteins(500)), tmp_path / "out")
    for shard in manifest.splits["train"].shards:
        with pa.memory_map(str(tmp_path / "out" / shard.file)) as source:
            sizes = [len(b["tokens"].flatten()) for b in pa.ipc.open_stream(source)]
        assert all(SMALL.batch_tokens <= size < SMALL.batch_tokens + 120 for size in sizes[:-1])


def test_huggingface_datasets_reads_a_shard(tmp_path: Path, proteins, write_fasta) -> None:
    records = proteins(50)
    manifest = run(write_fasta(tmp_path / "a.fasta", records), tmp_path / "out")
    dataset = datasets.Dataset.from_file(
        str(tmp_path / "out" / manifest.splits["train"].shards[0].file)
    )
    assert len(dataset) == manifest.splits["train"].shards[0].records
    for row in dataset:
        assert row["tokens"] == encode(records[row["id"]]).tolist()


def test_tokens_are_memory_mapped_without_a_copy(tmp_path: Path, proteins, write_fasta) -> None:
    records = proteins(200)
    manifest = run(write_fasta(tmp_path / "a.fasta", records), tmp_path / "out")
    shard = tmp_path / "out" / manifest.splits["train"].shards[0].file
    before = pa.total_allocated_bytes()
    with pa.memory_map(str(shard)) as source:
        batches = list(pa.ipc.open_stream(source))
        for batch in batches:
            values = batch["tokens"].values.to_numpy(zero_copy_only=True)
            offsets = batch["tokens"].offsets.to_numpy(zero_copy_only=True)
            rows = zip(batch["id"].to_pylist(), itertools.pairwise(offsets), strict=True)
            for name, (start, stop) in rows:
                assert np.array_equal(values[start:stop], encode(records[name]))
    assert pa.total_allocated_bytes() - before < 1000


def test_a_control_character_in_a_name_does_not_reach_the_terminal(
    tmp_path: Path, proteins, write_fasta, capsys
) -> None:
    run(write_fasta(tmp_path / "a\x1b.fasta", proteins(50)), tmp_path / "out", progress=True)
    assert r"a\x1b.fasta" in (err := capsys.readouterr().err) and "\x1b.fasta" not in err


def test_prepared_folder_is_used_again(tmp_path: Path, proteins, write_fasta, capsys) -> None:
    out = tmp_path / "out"
    source = write_fasta(tmp_path / "a.fasta", proteins(50))
    manifest = run(source, out)
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert run(source, out, progress=True) == manifest
    assert "already prepared" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_other_data_in_the_folder_is_named_and_kept(tmp_path: Path, proteins, write_fasta) -> None:
    out = tmp_path / "out"
    source = write_fasta(tmp_path / "a.fasta", proteins(50))
    run(source, out)
    before = contents(out)
    with pytest.raises(ValueError, match=r"seed \(there 7, wanted 8\).*choose another data.path"):
        run(source, out, seed=8)
    with pytest.raises(ValueError, match=r"test_fraction \(there 0.1, wanted 0.3\)"):
        run(source, out, test_fraction=0.3)
    with pytest.raises(ValueError, match=r"sources \(there a.fasta, wanted b.fasta\)"):
        run(write_fasta(tmp_path / "b.fasta", proteins(50)), out)
    text = source.read_text()
    source.write_text(text.replace("M", "L", 1))
    with pytest.raises(ValueError, match=r"sources \(their contents changed\)"):
        run(source, out)
    assert contents(out) == before


def test_something_else_in_the_folder_is_not_touched(tmp_path: Path, proteins, write_fasta) -> None:
    source = write_fasta(tmp_path / "a.fasta", proteins(10))
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds something else .*thesis.tex"):
        run(source, out)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]
    with pytest.raises(ValueError, match="is a file"):
        run(source, source)
    (tmp_path / "empty").mkdir()
    assert run(source, tmp_path / "empty").records == 10


@pytest.mark.parametrize("damage", ["truncate", "remove", "json", "version", "name"])
def test_damaged_result_is_not_taken_as_whole(
    tmp_path: Path, proteins, write_fasta, damage: str
) -> None:
    out = tmp_path / "out"
    manifest = run(write_fasta(tmp_path / "a.fasta", proteins(50)), out)
    shard = out / manifest.splits["train"].shards[0].file
    description = out / "manifest.json"
    if damage == "truncate":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "remove":
        shard.unlink()
    elif damage == "json":
        description.write_text(description.read_text()[:200])
    elif damage == "name":
        found = json.loads(description.read_text())
        found["splits"]["train"]["shards"][0]["file"] = 5
        description.write_text(json.dumps(found))
    else:
        description.write_text(
            description.read_text().replace('"format_version": 1', '"format_version": 9')
        )
    with pytest.raises(
        ValueError, match=r"has \d+ bytes|is missing|is damaged|format_version is 9"
    ):
        Manifest.load(out)
    with pytest.raises(ValueError, match="holds no prepared data"):
        Manifest.load(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bad.fasta is empty"),
        ("\n \n", "bad.fasta is empty"),
        ("MKVLA\n>a\nMKV\n", "bad.fasta:1: sequence before the first header"),
        ("\nonly words\nMK V\n", "bad.fasta:2: not FASTA: the first line is 'only words'"),
        ("\n\t>x\nMKV\n", r"bad.fasta:2: not FASTA: the first line is '\\t>x'"),
        (">p1\nMKV\n>p2\n\n", r"bad.fasta: none of its 2 records can be used"),
        (">x\nMKV\n" + ">y\nLAGV\n" * 500, r"499 of 506 records cannot be used; allowed are 10"),
        (
            ">x\nMKV\n" + ">q\nMK1\n" * 11,
            r"11 with other characters, first:\n.*bad.fasta:4: '1' in",
        ),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_bad_input_leaves_nothing_behind(
    tmp_path: Path, proteins, write_fasta, text: str, message: str, workers: int
) -> None:
    good = write_fasta(tmp_path / "good.fasta", proteins(5))
    bad = tmp_path / "bad.fasta"
    bad.write_text(text)
    with pytest.raises(ValueError, match=message):
        run([good, bad], tmp_path / "out", workers=workers)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["bad.fasta", "good.fasta"]


def test_refuses_a_file_that_is_given_twice(tmp_path: Path, proteins, write_fasta) -> None:
    path = write_fasta(tmp_path / "a.fasta", proteins(5))
    with pytest.raises(ValueError, match="given twice"):
        run([path, path], tmp_path / "out")


def test_all_into_train(tmp_path: Path, proteins, write_fasta) -> None:
    manifest = run(
        write_fasta(tmp_path / "a.fasta", proteins(50)),
        tmp_path / "out",
        validation_fraction=0,
        test_fraction=0,
    )
    assert manifest.splits["train"].records == 50
    assert manifest.splits["test"].shards == ()


def test_embedded_sample_prepares(tmp_path: Path) -> None:
    assert PROTEINS.sample.stat().st_size <= 2_000_000
    manifest = prepare(
        ProteinFiles([PROTEINS.sample]),
        tmp_path / "out",
        seed=0,
        validation_fraction=0.05,
        test_fraction=0.05,
        execution=Execution(progress=False),
    )
    assert (manifest.records, manifest.residues) == (5941, 2_120_041)
    assert manifest.duplicates_dropped == 0
    readme = (PROTEINS.sample.parent / "README.md").read_text()
    assert manifest.sources[0].sha256 in readme
