"""Rows of Parquet files in batches of bounded memory.

A value that a dictionary holds once may stand in every row, so that a small file can expand without bound.
Texts are therefore read as references to a dictionary, and expanded in batches of a few MiB.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .compressions import MAX_EXPANDED_BYTES, MAX_EXPANSION
from .limits import MIB, check_row

BATCH_BYTES = 16 * MIB
"""Texts of a batch. A single row may have more."""
BATCH_ROWS = 65_536
"""Rows of a batch."""
READ_BYTES = MIB
"""Bytes of a column that are read from the disk at once."""
_DICTIONARY_ENCODINGS = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}


def parquet_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of columns.

    Raises:
        ValueError: if a row is too long, or the pages of a column expand too much.
    """
    with pq.ParquetFile(
        path, read_dictionary=_with_dictionary(path, columns), buffer_size=READ_BYTES
    ) as file:
        for group in range(file.metadata.num_row_groups):
            rows = _rows_at_once(path, file.metadata.row_group(group), columns)
            for batch in file.iter_batches(rows, row_groups=[group], columns=list(columns)):
                yield from _bounded(path, batch)


def _with_dictionary(path: Path, columns: Sequence[str]) -> list[str]:
    """Return the paths of the texts, in columns or in their lists, that have a dictionary."""
    metadata = pq.read_metadata(path)
    found: set[str] = set()
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            is_text = chunk.physical_type == "BYTE_ARRAY"
            if is_text and not _DICTIONARY_ENCODINGS.isdisjoint(chunk.encodings):
                found.add(chunk.path_in_schema)
    return sorted(path for path in found if path.partition(".")[0] in columns)


def _rows_at_once(path: Path, group: pq.RowGroupMetaData, columns: Sequence[str]) -> int:
    """Return the number of rows whose values take about ``BATCH_BYTES`` without a dictionary.

    Raises:
        ValueError: if a column expands too much.
    """
    expanded = 0
    for number in range(group.num_columns):
        chunk = group.column(number)
        if chunk.path_in_schema.partition(".")[0] not in columns:
            continue
        size = chunk.total_uncompressed_size
        # Variants of one protein compress well. Their pages are small, and only a huge one takes much memory.
        if size > max(MAX_EXPANDED_BYTES, MAX_EXPANSION * chunk.total_compressed_size):
            raise ValueError(
                f"{path} expands to {size:,} bytes in the column {chunk.path_in_schema!r}, more than "
                f"{MAX_EXPANSION} times; write it again with smaller row groups, or save it as CSV"
            )
        expanded += size
    share = BATCH_BYTES * max(group.num_rows, 1) // max(expanded, 1)
    return min(BATCH_ROWS, max(1, share))


def _bounded(path: Path, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield parts of a batch whose texts take about ``BATCH_BYTES``."""
    sizes = np.zeros(len(batch), np.int64)
    for column in batch.columns:
        sizes += _lengths(column)
    if len(sizes):
        check_row(path, int(sizes.max()))
    ends = np.cumsum(sizes)
    start = 0
    while start < len(batch):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + BATCH_BYTES, side="right")))
        yield batch.slice(start, stop - start)
        start = stop


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of bytes of the text in each row; 0 for columns without texts."""
    if isinstance(column, pa.DictionaryArray):
        of_values = _lengths(column.dictionary)
        indices = column.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return of_values[indices] if len(of_values) else np.zeros(len(column), np.int64)
    kind = column.type
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        of_items = np.append(0, np.cumsum(_lengths(column.values)))
        offsets = column.offsets.to_numpy()
        return of_items[offsets[1:]] - of_items[offsets[:-1]] + np.diff(offsets)
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    if any(is_text(kind) for is_text in texts):
        lengths: npt.NDArray[np.int64] = (
            pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        return lengths
    return np.zeros(len(column), np.int64)
