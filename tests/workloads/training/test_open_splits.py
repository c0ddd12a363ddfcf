"""Memory of an open split of records."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from seqlm.training import records
from seqlm.training.records import RecordSplit

MOST_BYTES = 100_000
"""Bytes that an open split may take, whatever its size."""


@pytest.mark.parametrize("num_records", [1_000, 1_000_000])
def test_an_open_split_of_records_takes_no_memory_for_each(
    num_records: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = pa.LargeListArray.from_arrays(
        pa.array(np.arange(num_records + 1)), pa.array(np.full(num_records, 5, np.uint8))
    )
    batch = pa.record_batch({"tokens": tokens})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), batch.schema) as writer:
        writer.write_batch(batch)
    summary = SimpleNamespace(
        records=num_records, residues=num_records, shards=[SimpleNamespace(file="a.arrow")]
    )
    manifest = SimpleNamespace(splits={"train": summary})
    monkeypatch.setattr(records.Manifest, "load", lambda folder: manifest)
    tracemalloc.start()
    split = RecordSplit(tmp_path, "train")
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert split.num_units == num_records
    assert taken < MOST_BYTES
    places, lengths = split.draw(num_records - 3, 3, seed=0, epoch=0)
    assert places == [(0, num_records - 3 + row) for row in range(3)]
    assert lengths.tolist() == [1, 1, 1]
