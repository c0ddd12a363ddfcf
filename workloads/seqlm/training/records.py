"""Prepared proteins, memory-mapped, so that nothing is read before use or copied for a lookup.

A *unit* is what an epoch visits once: a protein, or a cluster of which one member is drawn.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqlm.training.data.manifest import Manifest

from .hashing import below, hash64

Split = Literal["train", "validation", "test"]

_MEMBER_SALT = 0x6D656D62  # keeps the draw of a member apart from other hashes of the same numbers


@dataclass(frozen=True)
class _Batch:
    """One Arrow record batch: views into the mapped file."""

    residues: npt.NDArray[np.uint8]
    """All tokens of the batch, one byte a residue; of text four bytes a token."""
    offsets: npt.NDArray[np.int64]
    """(rows + 1,) where each row's tokens begin."""
    unit_rows: npt.NDArray[np.int64]
    """(units + 1,) first row of each unit."""


class RecordSplit:
    """One split of a prepared folder.

    Raises:
        ValueError: if the folder is not prepared data, lacks the split, or a shard is missing or cut short.
    """

    records = "proteins"
    """Name of the records in messages."""
    tokens = "residues"
    """Name of the tokens in messages."""

    def __init__(self, folder: str | Path, split: Split) -> None:
        self.manifest = Manifest.load(Path(folder))
        summary = self.manifest.splits.get(split)
        if summary is None or not summary.records:
            held = [name for name, part in self.manifest.splits.items() if part.records]
            raise ValueError(
                f"{folder} has no {self.records} in its {split} split, only in {', '.join(held) or 'none'}. "
                f"Prepare it again with a larger data.{split}_fraction"
            )
        self.num_records = summary.records
        self.num_residues = summary.residues
        self.record_batches = [
            batch for shard in summary.shards for batch in _map_shard(Path(folder) / shard.file)
        ]
        """Batches with all columns; a place names one of them and its row."""
        self._batches = [_batch_of(batch) for batch in self.record_batches]
        units = [len(batch.unit_rows) - 1 for batch in self._batches]
        self._first_unit = np.concatenate([[0], np.cumsum(units)]).astype(np.int64)
        self.num_units = int(self._first_unit[-1])

    def draw(
        self, first_unit: int, num_units: int, seed: int, epoch: int
    ) -> tuple[list[tuple[int, int]], npt.NDArray[np.int64]]:
        """Draw the record that represents each unit of a range in an epoch.

        Returns:
            Places (batch, row) to give to ``residues``, and the records' lengths in residues (num_units,).
        """
        places: list[tuple[int, int]] = []
        lengths: list[npt.NDArray[np.int64]] = []
        unit, stop = first_unit, first_unit + num_units
        while unit < stop:
            index = int(np.searchsorted(self._first_unit, unit, side="right")) - 1
            batch, start = self._batches[index], int(self._first_unit[index])
            until = min(stop, int(self._first_unit[index + 1]))
            bounds = batch.unit_rows[unit - start : until - start + 1]
            hashes = hash64(_MEMBER_SALT, seed, epoch, np.arange(unit, until, dtype=np.int64))
            rows = bounds[:-1] + below(hashes, np.diff(bounds))
            places += [(index, row) for row in rows.tolist()]
            lengths.append(batch.offsets[rows + 1] - batch.offsets[rows])
            unit = until
        return places, np.concatenate(lengths)

    def residues(self, place: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Token ids of one record, a view into the file, shape (length,)."""
        batch = self._batches[place[0]]
        return batch.residues[batch.offsets[place[1]] : batch.offsets[place[1] + 1]]

    def token_counts(self) -> npt.NDArray[np.int64]:
        """Return how often each of the 33 tokens occurs, shape (33,). Reads the whole split once."""
        counts = np.zeros(len(self.manifest.vocabulary), dtype=np.int64)
        for batch in self._batches:
            used = batch.residues[batch.offsets[0] : batch.offsets[-1]]
            counts += np.bincount(used, minlength=len(counts))
        return counts


def _map_shard(path: Path) -> list[pa.RecordBatch]:
    try:
        return list(pa.ipc.open_stream(pa.memory_map(str(path))))
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(
            f"{path}: cannot be read ({error}); the prepared folder is damaged. "
            "Delete it and run 'make data' again"
        ) from None


def _batch_of(record_batch: pa.RecordBatch) -> _Batch:
    tokens = record_batch.column("tokens")
    offsets = np.frombuffer(tokens.buffers()[1], dtype=np.int64)
    offsets = offsets[tokens.offset : tokens.offset + len(tokens) + 1]
    kind = tokens.values.type.to_pandas_dtype()
    rows = np.arange(len(tokens) + 1, dtype=np.int64)
    if "cluster_size" in record_batch.schema.names:
        rows = np.append(np.flatnonzero(record_batch.column("cluster_size").to_numpy()), len(tokens))
    return _Batch(np.frombuffer(tokens.values.buffers()[1] or b"", dtype=kind), offsets, rows)
