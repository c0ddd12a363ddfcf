"""Tables as sources of pre-training: all forms give the same proteins as FASTA, with places of bad rows."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlm.proteins.data.prepare import Execution, prepare, prepare_proteins
from seqlm.proteins.data.sources import NamedColumns, ProteinFiles
from seqlm.runs.run_file import load_config
from seqlm.training.data.limits import Limits
from seqlm.training.data.manifest import SPLITS, Manifest

SMALL = Limits(
    block_bytes=700, piece_bytes=3000, shard_bytes=20_000, batch_tokens=2500, block_records=7
)
Records = dict[str, str]


def run(paths: list[Path], out: Path, *, columns: NamedColumns | None = None, **changes: Any):
    settings: dict[str, Any] = dict(workers=1, progress=False, limits=SMALL)
    return prepare(
        ProteinFiles(paths, columns=columns or NamedColumns()),
        out,
        seed=1,
        validation_fraction=0.2,
        test_fraction=0.1,
        execution=Execution(**settings | changes),
    )


def checksums(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*.arrow")
    }


def lines(records: Records, separator: str) -> str:
    rows = [("Entry", "Length", "Sequence")]
    rows += [(name, str(len(text)), text) for name, text in records.items()]
    return "".join(separator.join(row) + "\n" for row in rows)


def write_csv(path: Path, records: Records) -> None:
    path.write_text(lines(records, ","))


def write_semicolons(path: Path, records: Records) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + lines(records, ";").replace("\n", "\r\n").encode())


def write_utf16(path: Path, records: Records) -> None:
    path.write_text(lines(records, "\t"), encoding="utf-16")


def write_bz2(path: Path, records: Records) -> None:
    path.write_bytes(bz2.compress(lines(records, "\t").encode()))


def write_gzip(path: Path, records: Records) -> None:
    path.write_bytes(gzip.compress(lines(records, ",").encode()))


def write_zip(path: Path, records: Records) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table.csv", lines(records, ","))


def write_parquet(path: Path, records: Records) -> None:
    table = pa.table({"Entry": list(records), "Sequence": list(records.values())})
    pq.write_table(table, path, row_group_size=11)


def write_workbook(path: Path, records: Records) -> None:
    book = openpyxl.Workbook()
    for line in lines(records, ",").splitlines():
        book.active.append(line.split(","))
    book.save(path)


@pytest.mark.parametrize(
    "write",
    [
        write_csv,
        write_semicolons,
        write_utf16,
        write_bz2,
        write_gzip,
        write_zip,
        write_parquet,
        write_workbook,
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_table_gives_the_same_shards_as_fasta(
    tmp_path: Path,
    proteins,
    write_fasta,
    write: Callable[[Path, Records], None],
    workers: int,
) -> None:
    records = proteins(60)
    run([write_fasta(tmp_path / "a.fasta", records)], tmp_path / "of_fasta")
    table = tmp_path / "table"
    write(table, records)
    manifest = run([table], tmp_path / "of_table", workers=workers)
    assert checksums(tmp_path / "of_table") == checksums(tmp_path / "of_fasta")
    (source,) = manifest.sources
    assert source.name == "table"
    assert source.bytes == table.stat().st_size
    assert source.sha256 == hashlib.sha256(table.read_bytes()).hexdigest()
    assert run([table], tmp_path / "of_table") == manifest  # used again


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_rows_are_listed_with_their_lines(
    tmp_path: Path, proteins, read_split, workers: int
) -> None:
    records = proteins(40)
    rows = lines(records, ",").splitlines()
    rows[5:5] = ["x,3,MK*V", "y,0,", ",3,MKV", "z,MKV", "p1,3,MKV"]
    table = tmp_path / "a.csv"
    table.write_text("\n".join(rows))
    manifest = run([table], tmp_path / "out", workers=workers)
    arrived = dict(row for split in SPLITS for row in read_split(tmp_path / "out", split))
    assert arrived == records
    listed = (tmp_path / "out" / "rejects.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in listed[1:]] == [
        [f"{table}:6", "inner stop"],
        [f"{table}:7", "empty"],
        [f"{table}:8", "no id"],
        [f"{table}:9", "fields"],
        [f"{table}:10", "repeated id"],
    ]
    assert f"used before, at {table}:3;" in listed[5]
    assert manifest.rejected == dict.fromkeys(
        ("inner stop", "empty", "no id", "fields", "repeated id"), 1
    )


def test_rows_of_parquet_are_counted(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b", "a"], "sequence": ["MKV", None, "MKVL"]})
    pq.write_table(table, tmp_path / "a.parquet")
    run([tmp_path / "a.parquet"], tmp_path / "out")
    listed = (tmp_path / "out" / "rejects.csv").read_text()
    assert f"{tmp_path}/a.parquet row 2,empty," in listed
    assert f"{tmp_path}/a.parquet row 3,repeated id," in listed


def test_rows_without_ids_are_numbered_over_all_tables(tmp_path: Path, read_split) -> None:
    (tmp_path / "a.csv").write_text("sequence,x\nMKV,1\nMKVL,2\n")
    (tmp_path / "b.csv").write_text("sequence,x\nMKVLA,1\n")
    run([tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "out")
    arrived = dict(row for split in SPLITS for row in read_split(tmp_path / "out", split))
    assert arrived == {"1": "MKV", "2": "MKVL", "3": "MKVLA"}


def test_columns_can_be_named(tmp_path: Path, read_split) -> None:
    table = tmp_path / "a.csv"
    table.write_text("name,Sequence,chain\nx,AAAA,MKV\n")
    columns = NamedColumns(id="Sequence", sequence="chain")
    manifest = run([table], tmp_path / "out", columns=columns)
    arrived = dict(row for split in SPLITS for row in read_split(tmp_path / "out", split))
    assert arrived == {"AAAA": "MKV"}
    assert (manifest.settings.id_column, manifest.settings.sequence_column) == ("Sequence", "chain")
    with pytest.raises(ValueError, match=r"sequence_column \(there 'chain', wanted None\)"):
        run([table], tmp_path / "out")
    paths = {
        load_config("esm2_8m_sample", [f"data.source=[{table}]", *changes]).data.path
        for changes in ([], ["data.id_column=Sequence"], ["data.sequence_column=chain"])
    }
    assert len(paths) == 3


def test_a_table_without_sequences_is_named(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("name,chain\nx,MKV\n")
    with pytest.raises(ValueError, match=r"no column that is known for .* data.sequence_column"):
        run([table], tmp_path / "out")
    table.write_text("id,sequence\n")
    with pytest.raises(ValueError, match="has no row below its header"):
        run([table], tmp_path / "out")


def test_a_folder_may_mix_fasta_and_tables(
    tmp_path: Path, proteins, read_split, monkeypatch, capsys
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    records = proteins(30)
    items = list(records.items())
    (folder / "a.pep").write_text("".join(f">{name}\n{text}\n" for name, text in items[:10]))
    write_gzip(folder / "b", dict(items[10:20]))
    write_parquet(folder / "c.parquet", dict(items[20:]))
    (folder / "labels.csv").write_text("id,label\np1,x\n")
    (folder / "README.md").write_text("words")
    monkeypatch.chdir(tmp_path)
    config = load_config("esm2_8m_sample", ["data.source=[in]", "data.path=out"])
    manifest = prepare_proteins(config)
    arrived = dict(row for split in SPLITS for row in read_split(tmp_path / "out", split))
    assert arrived == records
    assert [source.name for source in manifest.sources] == ["in/a.pep", "in/b", "in/c.parquet"]
    assert Manifest.load(tmp_path / "out") == manifest
    told = capsys.readouterr().err
    assert (
        "in: read 3 protein files, left out 2 others: README.md (not protein), labels.csv" in told
    )
