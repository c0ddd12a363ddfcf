"""Random proteins, and prepared shards read back as plain records."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from seqlm.proteins.alphabet import decode

Records = dict[str, str]


@pytest.fixture
def proteins() -> Callable[..., Records]:
    """Make ``count`` different random proteins, by id."""

    def make(count: int, seed: int = 0, prefix: str = "p", longest: int = 120) -> Records:
        draw = random.Random(seed)
        return {
            f"{prefix}{number}": "".join(
                draw.choices("LAGVSERTIDPKQNFYMHWC", k=draw.randint(20, longest))
            )
            for number in range(count)
        }

    return make


@pytest.fixture
def write_fasta() -> Callable[[Path, Records], Path]:
    def write(path: Path, records: Records) -> Path:
        path.write_text(
            "".join(f">{name} a description\n{text}\n" for name, text in records.items())
        )
        return path

    return write


@pytest.fixture
def read_split() -> Callable[[Path, str], list[tuple[str, str]]]:
    """(id, sequence) of a split, in the order of its shards."""

    def read(folder: Path, split: str) -> list[tuple[str, str]]:
        rows = []
        for shard in sorted((folder / split).glob("*.arrow")):
            with pa.memory_map(str(shard)) as source:
                table = pa.ipc.open_stream(source).read_all()
            tokens = table["tokens"].to_pylist()
            rows += [
                (name, decode(t)) for name, t in zip(table["id"].to_pylist(), tokens, strict=True)
            ]
        return rows

    return read
