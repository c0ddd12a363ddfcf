"""Damaged tables are refused in a message or read in full, and never leave anything half done."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from seqlm.language.config import ChatConfig
from seqlm.language.table import read_conversations
from seqlm.proteins.data.fasta import CONTROL_CHARACTER
from seqlm.proteins.finetune.prepare import prepare_table
from seqlm.proteins.inference.records import Protein, read_proteins
from seqlm.proteins.reading.chains import Complex
from seqlm.proteins.reading.rejects import Reject
from seqlm.runs.run_file import load_config
from seqlm.training.data.manifest import Manifest
from tests.fuzz.mutation import mutated

ROWS = [(f"p{n}", "MKVLAGILFW"[: 3 + n % 7] + "AG" * n, n % 3, n % 2) for n in range(12)]
CSV = "".join(
    ",".join(map(str, row)) + "\n" for row in [("id", "sequence", "fold", "y"), *ROWS]
).encode()
TABLES = {
    "t.csv": (
        CSV,
        CSV.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + CSV,
        CSV.replace(b"MKV", b'"mkv"'),
    ),
    "t.tsv": (CSV.replace(b",", b"\t"),),
}
FASTA = "".join(f">{name}\n{protein}\n" for name, protein, *_ in ROWS).encode()
LABELS = "".join(
    f"{name},{fold},{y}\n" for name, _, fold, y in [("id", "", "fold", "y"), *ROWS]
).encode()
CHATS = {
    "t.json": (b'[{"question": "a", "answer": "b"}, {"question": "c", "answer": "d\\ne"}]',),
    "t.jsonl": (
        b'{"question": "a", "answer": "b"}\n{"question": "c", "answer": "d"}\n',
        b"[" * 5000,
    ),
    "t.csv": (b'question,answer\na,b\n"c\nd",e\n',),
}


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A run that fine-tunes on a table."""
    path = tmp_path / "run.yaml"
    split = {"column": "fold", "validation": [1], "test": [2]}
    task = {
        "kind": "binary",
        "label_columns": ["y"],
        "table": [str(tmp_path / "t.csv")],
        "split": split,
    }
    folders = {"path": str(tmp_path / "out"), "downloads": str(tmp_path / "downloads")}
    path.write_text(yaml.safe_dump({"model": {"init_from": "x"}, "task": task, "data": folders}))
    return path


def test_prepared_or_refused(rounds, tmp_path: Path, run_file: Path) -> None:
    for chance in rounds(150):
        name = chance.choice(list(TABLES))
        content = mutated(chance.choice(TABLES[name]), chance)
        if chance.random() < 0.2:
            name = f"{name}.gz"
            content = gzip.compress(content, mtime=0)
            content = mutated(content, chance) if chance.random() < 0.7 else content + b"junk"
        overrides = [f"task.table={tmp_path / name}"]
        (tmp_path / name).write_bytes(content)
        if chance.random() < 0.2:
            (tmp_path / "p.fasta").write_bytes(FASTA)
            (tmp_path / "l.csv").write_bytes(mutated(LABELS, chance))
            overrides = [f"task.table={tmp_path / 'p.fasta'}", f"task.labels={tmp_path / 'l.csv'}"]
        config = load_config(run_file, overrides)
        try:
            manifest = prepare_table(config)
        except ValueError as error:
            assert 0 < len(str(error)) < 20_000
        else:
            assert Manifest.load(config.data.path) == manifest
            shutil.rmtree(config.data.path)
        assert not [path.name for path in tmp_path.iterdir() if "out" in path.name]


def test_parquet_is_read_or_refused(rounds, tmp_path: Path, run_file: Path) -> None:
    columns = {
        name: [str(row[n]) for row in ROWS]
        for n, name in enumerate(("id", "sequence", "fold", "y"))
    }
    pq.write_table(pa.table(columns), tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    path = tmp_path / "t.parquet"
    config = load_config(run_file, [f"task.table={path}"])
    for chance in rounds(60):
        path.write_bytes(mutated(whole, chance))
        try:
            prepare_table(config)
        except ValueError as error:
            assert str(error)
        else:
            shutil.rmtree(config.data.path)


def test_inference_tells_every_record(rounds, tmp_path: Path) -> None:
    for chance in rounds(200):
        name = chance.choice(list(TABLES))
        path = tmp_path / name
        path.write_bytes(mutated(chance.choice(TABLES[name]), chance))
        try:
            read = list(
                read_proteins([str(path)], tmp_path, id_column="id", sequence_column="sequence")
            )
        except ValueError as error:
            assert str(path) in str(error)
            continue
        for record in read:
            if isinstance(record, Protein | Complex):
                chains = record.chains if isinstance(record, Complex) else [record]
                assert all(len(chain.tokens) for chain in chains)
                assert not CONTROL_CHARACTER.search(record.id)
            else:
                assert isinstance(record, Reject) and record.where.startswith(f"{path}:")


def test_conversations_are_read_or_refused(rounds, tmp_path: Path) -> None:
    for chance in rounds(300):
        name = chance.choice(list(CHATS))
        content = mutated(chance.choice(CHATS[name]), chance)
        if chance.random() < 0.2 and name != "t.csv":
            name = f"{name}.gz"
            content = mutated(gzip.compress(content, mtime=0), chance)
        (tmp_path / name).write_bytes(content)
        try:
            conversations = read_conversations([tmp_path / name], ChatConfig())
        except ValueError as error:
            assert name in str(error)
        else:
            assert all(one.question and one.answer for one in conversations)
