"""Prepared proteins as text: ids and sequences, record batch by record batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from workloads.esm2.alphabet import TOKENS
from workloads.training.data.manifest import Manifest
from workloads.training.records import Split

UNKNOWN = "X"
"""For residues that no token stands for; BioNeMo's tokenizer has this one, too."""
_LETTERS = np.frombuffer(
    "".join(token if len(token) == 1 else UNKNOWN for token in TOKENS).encode(), dtype=np.uint8
)


@dataclass(frozen=True)
class Batch:
    ids: list[str]
    sequences: list[str]
    first_rows: list[int]
    """Of each cluster; every row, where the data have no clusters."""

    def clusters(self) -> Iterator[list[str]]:
        """Ids of each cluster's members."""
        for start, stop in zip(self.first_rows, [*self.first_rows[1:], len(self.ids)], strict=True):
            yield self.ids[start:stop]


def read_batches(folder: Path, manifest: Manifest, split: Split) -> Iterator[Batch]:
    """The records of a split in their order; a cluster is never divided."""
    for shard in manifest.splits[split].shards:
        with pa.memory_map(str(folder / shard.file)) as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                yield _read(batch)


def _read(batch: pa.RecordBatch) -> Batch:
    tokens = batch.column("tokens")
    offsets = tokens.offsets.to_numpy().tolist()
    text = _LETTERS[tokens.values.to_numpy(zero_copy_only=False)].tobytes().decode()
    base = offsets[0]
    sequences = [text[start - base : stop - base] for start, stop in itertools.pairwise(offsets)]
    first_rows = list(range(len(batch)))
    if "cluster_size" in batch.schema.names:
        first_rows = np.flatnonzero(batch.column("cluster_size").to_numpy()).tolist()
    return Batch(batch.column("id").to_pylist(), sequences, first_rows)
