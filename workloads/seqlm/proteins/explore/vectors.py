"""Embeddings in a Parquet file, read batch by batch, because all of them may not fit into memory."""

import json
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Floats = npt.NDArray[np.float32]
BATCH_BYTES = 64 << 20
"""Bytes of the vectors of a batch."""
READ_ROWS = 4096
"""Rows that are read at once. With more, Arrow keeps several times their size."""
BYTES_PER_NUMBER = 4
"""Bytes of a number of a vector."""


class VectorFile:
    """Embeddings of N proteins, with C features each.

    Args:
        path: file of ``seqlm embed``.
        column: name of the column with the vectors; None for the only one.

    Raises:
        ValueError: if the file cannot be read, or has no such column.
    """

    def __init__(self, path: Path, column: str | None) -> None:
        self._path = path
        try:
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow
                known = [each.name for each in schema if pa.types.is_fixed_size_list(each.type)]
                if "id" not in schema.names or not known:
                    raise ValueError(
                        f"explore.embeddings: {path} has no column id, or no vector per protein; "
                        "write it with seqlm embed and a pooling other than none"
                    )
                name = column or known[0]
                if name not in known or (column is None and len(known) > 1):
                    raise ValueError(
                        f"explore.vectors: got {column}; {path} has {', '.join(known)}"
                    )
                self._num_rows: int = file.metadata.num_rows
        except OSError as error:
            raise ValueError(
                f"explore.embeddings: {path} cannot be read: {error}; run seqlm embed first"
            ) from None
        except pa.ArrowInvalid as error:
            raise ValueError(f"explore.embeddings: {path} is not a Parquet file: {error}") from None
        self._column = name
        self.num_features: int = schema.field(name).type.list_size
        written = json.loads((schema.metadata or {}).get(b"esm2", b"{}"))
        model = "/".join(Path(str(written.get("model", ""))).parts[-3:])
        parts = [
            f"{len(self):,} proteins, {self.num_features:,} features",
            model,
            "" if name == "embedding" else name,
        ]
        self.description = " · ".join(part for part in parts if part)

    def __len__(self) -> int:
        return self._num_rows

    def id_batches(self) -> Iterator[list[str]]:
        """Yield the ids of all proteins in their order."""
        with pq.ParquetFile(self._path, pre_buffer=False) as file:
            for batch in file.iter_batches(READ_ROWS, columns=["id"]):
                yield batch.column(0).to_pylist()

    def ids_of(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """Return the ids of some rows, which are in ascending order."""
        found: list[str] = []
        first_row = 0
        for ids in self.id_batches():
            start, stop = np.searchsorted(rows, [first_row, first_row + len(ids)])
            found += [ids[row] for row in (rows[start:stop] - first_row).tolist()]
            first_row += len(ids)
        return found

    def batches(self) -> Iterator[Floats]:
        """Yield all vectors in their order, as arrays (rows, C)."""
        # A loop would keep each array in memory while the caller works on it, and on what it makes of it.
        return map(itemgetter(1), self._batches([self._column]))

    def batches_with_ids(self) -> Iterator[tuple[list[str], Floats]]:
        """Yield the ids and vectors of all proteins in their order."""
        return self._batches([self._column, "id"])

    def _batches(self, columns: list[str]) -> Iterator[tuple[list[str], Floats]]:
        """Yield the ids, if they are among the columns, and the vectors of ``BATCH_BYTES``."""
        most_rows = max(1, BATCH_BYTES // (BYTES_PER_NUMBER * self.num_features))
        ids: list[str] = []
        pending: list[Floats] = []
        num_pending = 0
        # With the buffer, all bytes that were read stay in memory until the file is closed.
        with pq.ParquetFile(self._path, pre_buffer=False) as file:
            for batch in file.iter_batches(READ_ROWS, columns=columns):
                numbers = np.asarray(batch.column(self._column).flatten())
                vectors = numbers.reshape(-1, self.num_features).astype(np.float32)
                if pending and num_pending + len(vectors) > most_rows:
                    yield ids, _joined(pending)
                    ids = []
                    num_pending = 0
                if "id" in columns:
                    ids += batch.column("id").to_pylist()
                pending.append(vectors)
                num_pending += len(vectors)
        if pending:
            yield ids, _joined(pending)

    def checked_rows(self, rows: npt.NDArray[np.int64]) -> Floats:
        """Return the vectors of some rows, after a check of all.

        Args:
            rows: rows in ascending order.

        Raises:
            ValueError: if there are fewer than two vectors, or a number is not finite.
        """
        found = np.empty((len(rows), self.num_features), dtype=np.float32)
        num_wrong = 0
        first_row = 0
        for vectors in self.batches():
            start, stop = np.searchsorted(rows, [first_row, first_row + len(vectors)])
            found[start:stop] = vectors[rows[start:stop] - first_row]
            num_wrong += int((~np.isfinite(vectors)).sum())
            first_row += len(vectors)
        if len(self) < 2 or num_wrong:
            raise ValueError(
                f"explore.embeddings: {self._path} has {len(self):,} embeddings, in which "
                f"{num_wrong:,} numbers are not finite; give at least two of finite numbers"
            )
        return found


def _joined(parts: list[Floats]) -> Floats:
    """Join arrays, and drop them from the list, which would keep them in memory beside the whole."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole
