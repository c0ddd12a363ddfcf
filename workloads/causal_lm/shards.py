"""Shards of conversations: those of proteins with tokens of text, so that both are read alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from workloads.esm2.data.limits import Limits
from workloads.esm2.data.manifest import Split
from workloads.esm2.finetune.label_shards import ranges, write_shards

if TYPE_CHECKING:
    from .prepare import Prepared

SCHEMA = pa.schema(
    [
        pa.field("id", pa.large_string()),
        pa.field("tokens", pa.large_list(pa.int32())),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("question", pa.large_string()),
        pa.field("response", pa.large_string()),
    ]
)


def write_split(folder: Path, name: str, conversations: Sequence[Prepared]) -> Split:
    """Write the shards of a split into ``folder`` / ``name``, in the order given."""
    lengths = np.array([len(one.tokens) for one in conversations], dtype=np.int64)

    def write(file: Path, start: int, stop: int) -> None:
        _write_shard(file, conversations[start:stop])

    return write_shards(folder, name, lengths, len({one.id for one in conversations}), write)


def _write_shard(file: Path, conversations: Sequence[Prepared]) -> None:
    lengths = np.array([len(one.tokens) for one in conversations], dtype=np.int64)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as stream:
        for start, stop in ranges(lengths, Limits.for_workers(1).batch_residues):
            chosen = conversations[start:stop]
            offsets = np.concatenate([[0], np.cumsum(lengths[start:stop])])
            tokens = np.array([token for one in chosen for token in one.tokens], dtype=np.int32)
            columns = [
                pa.array([one.id for one in chosen], type=pa.large_string()),
                pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens)),
                pa.array([one.prompt_tokens for one in chosen], type=pa.int32()),
                pa.array([one.question for one in chosen], type=pa.large_string()),
                pa.array([one.response for one in chosen], type=pa.large_string()),
            ]
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
