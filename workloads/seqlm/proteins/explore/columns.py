"""Columns of a table for the proteins of a file of embeddings.

A table is in memory once. Of each protein there is only the number of its row, because embeddings may be of
far more proteins than the table.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from seqlm.proteins.finetune.prepare import TABLES
from seqlm.proteins.finetune.table import PROTEIN_TABLE
from seqlm.proteins.reading.columns import format_of, id_column_of, possible_sequences
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.formats import table_of_proteins
from seqlm.proteins.reading.policies import Kind, Reader
from seqlm.proteins.reading.rejects import Reject, stopped
from seqlm.runs.run_file import RunFile
from seqlm.training.data.table_forms import Layout, TableForm
from seqlm.training.data.table_rows import TABLE_FORMATS, Problems, Table
from seqlm.training.data.workbook import workbook_rows
from seqlm.training.strict_yaml import shown

from .vectors import VectorFile

UNNAMED = "Unnamed:"
"""Beginning of the names that pandas gives to columns without a name."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""Cell of a column of numbers."""
ID = "id"
"""Column of the ids of embeddings."""
TABLE_ID = "id of the table"
"""Name here of a table's own column ``id``."""

Rows = npt.NDArray[np.integer]


@dataclass(frozen=True)
class ProteinColumns:
    """Columns of a table, and the row of each protein."""

    values: pd.DataFrame
    """(rows + 1) rows of the table. The last one has no values, for proteins that the table lacks."""
    ids: pd.Series
    """(rows + 1) ids of these rows."""
    rows: npt.NDArray[np.int32]
    """(N,) row of each protein; -1 without one."""

    def column(self, name: str) -> pd.Series:
        """Return the values of a column by its name in the table."""
        return self.values[TABLE_ID if name == ID else name]

    def of(self, ids: Sequence[str], proteins: slice | Rows) -> pd.DataFrame:
        """Return the ids of some proteins and their columns."""
        chosen = self.values.iloc[self.rows[proteins]].reset_index(drop=True)
        return pd.concat([pd.DataFrame({ID: ids}), chosen], axis=1)


def _no_columns(vectors: VectorFile) -> ProteinColumns:
    """Return the columns of proteins without a table."""
    rows = np.broadcast_to(np.int32(-1), len(vectors))
    return ProteinColumns(pd.DataFrame(index=range(1)), pd.Series([None]), rows)


def protein_columns(vectors: VectorFile, config: RunFile, counts: list[Counts]) -> ProteinColumns:
    """Read the columns of ``explore.table``, or of the run's table of labels, by id.

    Args:
        vectors: embeddings of the proteins.
        config: run file.
        counts: list that receives the numbers of rows and labels.

    Raises:
        ValueError: if a requested table or column is missing or cannot be used.
    """
    options = config.explore
    wanted = [*options.columns, *filter(None, (options.label, options.split))]
    is_requested = bool(options.table or wanted)
    files = _tables(config)
    if not is_requested:
        # Columns of the run's table are welcome, but not needed.
        files = [path for path in files if path.is_file() and _is_table(path)]
    if not files:
        if is_requested:
            raise ValueError(f"explore.table: got none; name the table with the column {wanted[0]}")
        return _no_columns(vectors)
    key, sequences = _key_and_sequences(config, files[0])
    if key is None:
        message = f"explore.table: {files[0]} has no column that is known for ids"
        if is_requested:
            raise ValueError(f"{message}; name it in inference.id_column")
        print(f"note: {message}")
        return _no_columns(vectors)
    known = pd.concat([_table(path, key) for path in files])
    missing = [name for name in (key, *wanted) if name not in known]
    if missing:
        raise ValueError(
            f"explore.table: no column {missing[0]}; the columns are {', '.join(known.columns)}"
        )
    ids = known[key].astype(str)
    repeated = ids[ids.duplicated()]
    if len(repeated):
        reason = (
            f"the id {shown(repeated.iloc[0])} occurs more than once; give each protein one row"
        )
        raise stopped(Reader.EXPLORE, Reject(Kind.REPEATED_ROW, "explore.table", reason))
    if not len(ids):
        raise stopped(Reader.EXPLORE, Reject(Kind.NO_RECORD, "explore.table", "got no row"))
    rows, num_found = _rows_of(vectors, ids)
    if not num_found:
        reason = (
            f"none of its ids, such as {shown(ids.iloc[0])}, is an id of the embeddings, such as "
            f"{shown(next(vectors.id_batches())[0])}; set inference.id_column"
        )
        nothing_used = Reject(Kind.NOTHING_USED, "explore.table", reason)
        if is_requested:
            raise stopped(Reader.EXPLORE, nothing_used)
        print(f"note: {nothing_used.text}")
        return _no_columns(vectors)
    without_protein = Counter({Kind.NO_PROTEIN: len(ids) - num_found})
    counts.append(Counts("rows of the table", num_found, without_protein))
    chosen = list(options.columns)
    if not chosen:
        others = [name for name in known.columns if name not in (key, "id", *sequences)]
        chosen = [name for name in others if not str(name).startswith(UNNAMED)]
    columns = list(dict.fromkeys([*chosen, *wanted]))
    # Whole numbers stay whole, also in columns with gaps, because folds are compared as text.
    given = known[columns].convert_dtypes().reset_index(drop=True)
    values = given.reindex(range(len(given) + 1))
    if options.label:
        has_label = values[options.label].notna().to_numpy()
        num_labels = int(has_label[rows].sum())
        without_label = Counter({Kind.NO_LABEL: len(rows) - num_labels})
        counts.append(Counts("labels", num_labels, without_label))
    ids_of_rows = ids.reset_index(drop=True).reindex(range(len(ids) + 1))
    return ProteinColumns(values.rename(columns={ID: TABLE_ID}), ids_of_rows, rows)


def _rows_of(vectors: VectorFile, ids: pd.Series) -> tuple[npt.NDArray[np.int32], int]:
    """Return the row of a table for each protein, and the number of rows that have a protein.

    Args:
        vectors: embeddings of the proteins.
        ids: ids of the rows, each only once.
    """
    index = pd.Index(ids)
    rows = np.empty(len(vectors), dtype=np.int32)
    is_found = np.zeros(len(ids), dtype=bool)
    first = 0
    for batch in vectors.id_batches():
        found = index.get_indexer(pd.Index(batch))
        rows[first : first + len(batch)] = found
        is_found[found[found >= 0]] = True
        first += len(batch)
    return rows, int(is_found.sum())


def _tables(config: RunFile) -> list[Path]:
    """Return the files of ``explore.table``, or of the run's table of labels."""
    names = config.explore.table
    if not names and config.task:
        names = config.task.table
    return [TABLES.sample if name == "sample" else Path(name) for name in names]


def _key_and_sequences(config: RunFile, path: Path) -> tuple[str | None, list[str]]:
    """Return the column of a table with the ids, None without one, and those with sequences."""
    inference = config.inference
    task = config.task
    key = inference.id_column or (task.id_column if task else None)
    sequence = inference.sequence_column or (task.sequence_column if task else None)
    chains = inference.sequence_columns or (task.sequence_columns if task else ())
    try:
        header = Table(path, PROTEIN_TABLE).header
    except (OSError, ValueError) as error:
        raise ValueError(f"explore.table: {path} cannot be read: {error}") from None
    place = f"explore.table: {path}"
    key = key or id_column_of(header, format_of(header), place, "inference.id_column")
    if chains:
        return key, list(chains)
    return key, [sequence] if sequence else possible_sequences(header)


def _is_table(path: Path) -> bool:
    """Return whether a file is a table, whatever its name."""
    return table_of_proteins(path) is not None


def _table(path: Path, key: str) -> pd.DataFrame:
    """Read a table, with the column ``key`` as text."""
    try:
        form = table_of_proteins(path)
        if form is None:
            raise ValueError(f"not a table; give {TABLE_FORMATS}")
        if form.layout is Layout.PARQUET:
            return pd.read_parquet(path)
        if form.layout is Layout.WORKBOOK:
            header, *rows = workbook_rows(path)
            read = pd.DataFrame(rows, columns=header)
            return read.rename(columns=lambda name: str(name).strip())
        return _text_table(path, key, form)
    except (OSError, ValueError) as error:
        raise ValueError(f"explore.table: {path} cannot be read: {error}") from None


def _text_table(path: Path, key: str, form: TableForm) -> pd.DataFrame:
    """Read a table of text, with the column ``key`` as text, and columns of numbers as numbers.

    Raises:
        ValueError: if a row has another number of cells than the header.
    """
    table = Table(path, PROTEIN_TABLE, form)
    names = [name for name in dict.fromkeys(table.header) if name]
    rows = [cells for _, cells in table.rows(names, _Stopping())]
    columns = {name: pd.Series([row[name] for row in rows], dtype=object) for name in names}
    return pd.DataFrame(
        {name: cells if name == key else _typed(cells) for name, cells in columns.items()}
    )


class _Stopping(Problems):
    """Mistakes in rows, the first of which stops the command."""

    def add(self, where: str, text: str, kind: str = "") -> None:
        raise stopped(Reader.EXPLORE, Reject(Kind(kind), where, text))


def _typed(cells: pd.Series) -> pd.Series:
    """Return a column of texts as numbers if all of them are. Words such as ``nan`` stay words."""
    known = cells.dropna()
    if len(known) and known.map(lambda text: bool(NUMBER.fullmatch(text))).all():
        return pd.to_numeric(cells)
    return cells
