"""Prepared records, memory-mapped, so that nothing is read before use or copied for a lookup.

An epoch visits each *unit* once. A unit is a record, or a cluster of records of which one is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqlm.training.data.manifest import Manifest

from .hashing import below, hash64

Split = Literal["train", "validation", "test"]

_MEMBER_SALT = 0x6D656D62
"""Salt that keeps the draw of a cluster's member apart from other hashes of the same numbers."""


@dataclass(frozen=True)
class _Batch:
    """Views of one Arrow record batch in the mapped file."""

    tokens: npt.NDArray[np.uint8]
    """Token ids of all rows, in the type of the file."""
    offsets: npt.NDArray[np.int64]
    """(rows + 1,) index of each row's first token, and the end of the last row."""
    unit_rows: npt.NDArray[np.int64] | None
    """(units + 1,) first row of each unit, and the number of rows; None if each row is a unit, so that a
    split of records takes no memory for each of them."""

    @property
    def num_units(self) -> int:
        """Number of units."""
        bounds = self.offsets if self.unit_rows is None else self.unit_rows
        return len(bounds) - 1


@dataclass(frozen=True)
class Drawn:
    """Records that represent units in an epoch. Arrays have one entry per unit."""

    batches: npt.NDArray[np.int64]
    """Index of each record's batch."""
    rows: npt.NDArray[np.int64]
    """Row of each record in its batch."""
    lengths: npt.NDArray[np.int64]
    """Tokens of each record."""

    @property
    def places(self) -> list[tuple[int, int]]:
        """Places (batch, row) of the records, for ``token_ids``."""
        return list(zip(self.batches.tolist(), self.rows.tolist(), strict=True))


class RecordSplit:
    """One split of a prepared folder.

    Args:
        folder: folder of prepared data.
        split: name of the split.

    Raises:
        ValueError: if the folder is not prepared data, lacks the split, or a shard is missing or cut short.
    """

    records = "records"
    """Word for the records in messages."""
    tokens = "tokens"
    """Word for the tokens in messages."""

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
        self.num_tokens = summary.residues
        self.record_batches = [
            batch for shard in summary.shards for batch in _map_shard(Path(folder) / shard.file)
        ]
        """Batches with all columns. A place of a record is the index of a batch and of a row in it."""
        self._batches = [_batch_of(batch) for batch in self.record_batches]
        units = [batch.num_units for batch in self._batches]
        self._first_unit = np.concatenate([[0], np.cumsum(units)]).astype(np.int64)
        self.num_units = int(self._first_unit[-1])

    def draw(
        self, first_unit: int, num_units: int, seed: int, epoch: int
    ) -> tuple[list[tuple[int, int]], npt.NDArray[np.int64]]:
        """Draw the record that represents each unit of a range in an epoch.

        Returns:
            Places (batch, row) of the records, for ``token_ids``, and their lengths in tokens (num_units,).
        """
        units = np.arange(first_unit, first_unit + num_units, dtype=np.int64)
        drawn = self.drawn(units, seed, epoch)
        return drawn.places, drawn.lengths

    def drawn(self, units: npt.NDArray[np.int64], seed: int, epoch: int) -> Drawn:
        """Draw the record that represents each unit in an epoch. The units may have any order."""
        ends = [units.min(), units.max()]
        first, last = (np.searchsorted(self._first_unit, ends, side="right") - 1).tolist()
        if first == last:  # as for most blocks and packs
            rows, lengths = self._drawn_from(first, units, seed, epoch)
            return Drawn(np.full(len(units), first), rows, lengths)
        batches = np.searchsorted(self._first_unit, units, side="right") - 1
        rows = np.empty(len(units), dtype=np.int64)
        lengths = np.empty(len(units), dtype=np.int64)
        for index in (first + np.flatnonzero(np.bincount(batches - first))).tolist():
            chosen = np.flatnonzero(batches == index)
            rows[chosen], lengths[chosen] = self._drawn_from(index, units[chosen], seed, epoch)
        return Drawn(batches, rows, lengths)

    def _drawn_from(
        self, index: int, units: npt.NDArray[np.int64], seed: int, epoch: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the rows of the records that represent units of one batch, and their lengths in tokens."""
        batch = self._batches[index]
        rows = units - self._first_unit[index]
        if batch.unit_rows is not None:
            firsts = batch.unit_rows[rows]
            hashes = hash64(_MEMBER_SALT, seed, epoch, units)
            rows = firsts + below(hashes, batch.unit_rows[rows + 1] - firsts)
        return rows, batch.offsets[rows + 1] - batch.offsets[rows]

    def token_ids(self, place: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Return the token ids of one record, a view into the file, shape (length,)."""
        index, row = place
        batch = self._batches[index]
        return batch.tokens[batch.offsets[row] : batch.offsets[row + 1]]

    def crops(
        self,
        places: Sequence[tuple[int, int]],
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint8]:
        """Return parts of records, one behind another, shape (sum of the lengths,).

        One gather for each batch of the file takes less time than one copy for each record.

        Args:
            places: places of the records.
            starts: index of the first token of each part within its record.
            lengths: number of tokens of each part.
        """
        number, row = np.array(places, dtype=np.int64).reshape(-1, 2).T
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        within = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
        found = np.empty(total, dtype=self._batches[0].tokens.dtype)
        for index in np.unique(number).tolist():
            batch = self._batches[index]
            chosen = number == index
            firsts = batch.offsets[row[chosen]]
            if chosen.all():
                return batch.tokens[within + np.repeat(firsts, lengths)]
            is_here = np.repeat(chosen, lengths)
            found[is_here] = batch.tokens[within[is_here] + np.repeat(firsts, lengths[chosen])]
        return found

    def token_counts(self) -> npt.NDArray[np.int64]:
        """Count the occurrences of each token, shape (vocabulary,). Reads the whole split once."""
        counts = np.zeros(len(self.manifest.vocabulary), dtype=np.int64)
        for batch in self._batches:
            used = batch.tokens[batch.offsets[0] : batch.offsets[-1]]
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
    column = record_batch.column("tokens")
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int64)
    offsets = offsets[column.offset : column.offset + len(column) + 1]
    tokens = np.frombuffer(
        column.values.buffers()[1] or b"", dtype=column.values.type.to_pandas_dtype()
    )
    unit_rows: npt.NDArray[np.int64] | None = None
    if "cluster_size" in record_batch.schema.names:
        # Only the first member of a cluster has its size; the others have 0.
        sizes = record_batch.column("cluster_size").to_numpy()
        unit_rows = np.append(np.flatnonzero(sizes), len(column))
    return _Batch(tokens, offsets, unit_rows)
