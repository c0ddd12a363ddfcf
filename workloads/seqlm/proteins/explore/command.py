"""Map of embeddings as one HTML page, and exports of them (``seqlm explore``).

The input is the Parquet file of ``seqlm embed``. A table with the same ids adds columns. Their values colour
the map, and the labels of one column are transferred to each protein from the nearest labelled one. The page
has no vectors, sends no requests and escapes all text.
"""

import base64
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from seqlm.proteins.config import ExploreConfig
from seqlm.proteins.finetune.prepare import TABLES
from seqlm.proteins.finetune.table import PROTEIN_TABLE
from seqlm.proteins.inference.output_file import output_file
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
from seqlm.training.whole_file import write_whole, writing_whole

from .projection import Floats, Neighbors, Projection, neighbors, projections, transfer
from .vectors import VectorFile

SEED = 0
"""Seed of the drawn proteins."""
TEMPLATE = Path(__file__).with_name("page.html")
NO_VALUE = 65_535
"""Code of a missing value of a column."""
MAX_COORDINATE = 65_535
"""Largest coordinate on a map."""
MAX_CATEGORIES = 1_000
"""Largest number of values of a column to colour by."""
MAX_NUMBERS_AS_NAMES = 12
"""Largest number of different numbers in a column that are shown as names, each with its own colour."""
UNNAMED = "Unnamed:"
"""Beginning of the names that pandas gives to columns without a name."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
"""Cell of a column of numbers."""
LEAST_TO_SPLIT = 3
"""Smallest number of transferred labels that are compared by distance."""


@dataclass(frozen=True)
class TransferredLabels:
    """Labels of each protein from the nearest labelled one."""

    column: str
    """Column of the labels."""
    sources: pd.DataFrame
    """Transferred label, and id and distance of the protein that it comes from, for each protein."""


def explore(config: RunFile) -> None:
    """Write the page, the transferred labels and the exports.

    Raises:
        ValueError: if a file, a column or an id is missing or cannot be used.
    """
    options = config.explore
    source = Path(options.embeddings or output_file(config, "embed"))
    path = Path(options.output or source.with_suffix(".html"))
    if path.suffix != ".html":
        raise ValueError(f"explore.output: got {path}; its name must end in .html")
    vectors = VectorFile(source, options.vectors)
    shown = _drawn(len(vectors), options.max_proteins)
    points = vectors.checked_rows(shown)
    counts: list[Counts] = []
    table = _with_columns(pd.DataFrame({"id": vectors.ids}), config, counts)
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = _transfer(table, vectors, options, path) if options.label else None
    for file in _export(path, table, vectors, options.export):
        print(f"wrote {file}")
    if len(shown) < len(table):
        print(f"the map has {len(shown):,} of {len(table):,} proteins, drawn with a fixed seed")
    print(
        f"projecting {len(shown):,} embeddings of {vectors.num_features:,} features, and searching "
        "neighbours"
    )
    rows = table.iloc[shown].reset_index(drop=True)
    if labels is not None:
        labels = TransferredLabels(labels.column, labels.sources.iloc[shown].reset_index(drop=True))
    html = page(
        path.stem, vectors.description, rows, projections(points), neighbors(points), labels
    )
    write_whole(path, html)
    print(f"wrote {path}: map of {len(rows):,} proteins")
    not_drawn = Counter({Kind.NOT_DRAWN: len(table) - len(rows)})
    for one in [Counts("proteins", len(rows), not_drawn), *counts]:
        print(one.line())


def _drawn(count: int, max_proteins: int) -> npt.NDArray[np.int64]:
    """Return the rows of the proteins on the map, in order."""
    if count <= max_proteins:
        return np.arange(count)
    return np.sort(np.random.default_rng(SEED).permutation(count)[:max_proteins])


def _with_columns(table: pd.DataFrame, config: RunFile, counts: list[Counts]) -> pd.DataFrame:
    """Add the columns of ``explore.table``, or of the run's table of labels, by id.

    Args:
        table: ids of the embeddings.
        config: run file.
        counts: list that receives the numbers of rows and labels.
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
        return table
    key, sequences = _key_and_sequences(config, files[0])
    if key is None:
        message = f"explore.table: {files[0]} has no column that is known for ids"
        if is_requested:
            raise ValueError(f"{message}; name it in inference.id_column")
        print(f"note: {message}")
        return table
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
    num_found = int(ids.isin(table["id"]).sum())
    if not num_found:
        reason = (
            f"none of its ids, such as {shown(ids.iloc[0])}, is an id of the embeddings, such as "
            f"{shown(table['id'].iloc[0])}; set inference.id_column"
        )
        nothing_used = Reject(Kind.NOTHING_USED, "explore.table", reason)
        if is_requested:
            raise stopped(Reader.EXPLORE, nothing_used)
        print(f"note: {nothing_used.text}")
        return table
    without_protein = Counter({Kind.NO_PROTEIN: len(ids) - num_found})
    counts.append(Counts("rows of the table", num_found, without_protein))
    chosen = list(options.columns)
    if not chosen:
        others = [name for name in known.columns if name not in (key, "id", *sequences)]
        chosen = [name for name in others if not str(name).startswith(UNNAMED)]
    columns = list(dict.fromkeys([*chosen, *wanted]))
    # Whole numbers stay whole, also in columns with gaps, because folds are compared as text.
    given = known[columns].convert_dtypes().set_axis(ids, axis=0)
    values = given.reindex(table["id"]).reset_index(drop=True)
    if options.label:
        num_labels = int(values[options.label].notna().sum())
        without_label = Counter({Kind.NO_LABEL: len(values) - num_labels})
        counts.append(Counts("labels", num_labels, without_label))
    return pd.concat([table, values.rename(columns={"id": "id of the table"})], axis=1)


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


def _transfer(
    table: pd.DataFrame, vectors: VectorFile, options: ExploreConfig, path: Path
) -> TransferredLabels:
    """Transfer the labels, write them as a table and print how many agree."""
    label = str(options.label)
    labels = table[label].astype(str).where(table[label].notna())
    is_reference = labels.notna().to_numpy()
    is_asked = np.ones(len(table), dtype=bool)
    where = ""
    if options.split:
        is_asked = ~table[options.split].astype(str).isin(options.reference).to_numpy()
        is_reference = is_reference & ~is_asked  # pandas' arrays are read-only
        where = f" and one of {', '.join(options.reference)} in {options.split}"
    if not is_reference.any():
        raise ValueError(
            f"explore.label: no protein has a value of {label}{where}; name another column, or another "
            "explore.reference"
        )
    found = transfer(vectors.batches, is_reference)
    sources = found.sources(table, label)
    has_source = found.nearest >= 0
    result = pd.concat([table[["id"]], labels.rename("label"), sources], axis=1)[
        is_asked & has_source
    ]
    file = path.with_name(f"{path.stem}.transfer.csv")
    write_whole(file, result.to_csv(index=False, lineterminator="\n"))
    print(
        f"wrote {file}: {label} of {len(result):,} proteins, from the nearest of {is_reference.sum():,}"
    )
    known = result[result["label"].notna()]
    if len(known) >= LEAST_TO_SPLIT:
        _print_agreement(known)
    return TransferredLabels(label, sources)


def _print_agreement(known: pd.DataFrame) -> None:
    """Print the share of proteins with a label that get the same label, also by distance."""
    agrees = known["label"] == known["transferred"]
    thirds = pd.qcut(known["distance"].rank(method="first"), 3, labels=["near", "middle", "far"])
    by_distance = agrees.groupby(thirds, observed=True).mean()
    shares = ", ".join(f"{name} {share:.3f}" for name, share in by_distance.items())
    print(
        f"transferred labels that are right: {agrees.mean():.3f} of {len(known):,}; by distance: {shares}"
    )


def _export(
    path: Path, table: pd.DataFrame, vectors: VectorFile, formats: Collection[str]
) -> list[Path]:
    """Write the embeddings in other formats; each file appears whole or not at all."""
    if "vector" in table and "parquet" in formats:
        raise ValueError(
            "explore.columns: got vector, which is the exported vector; rename it in the table"
        )
    files = []
    for form in formats:
        file = path.with_name(f"{path.stem}.vectors.{form}")
        with writing_whole(file) as partial:
            if form == "npy":
                _write_array(partial, vectors)
            elif form == "parquet":
                _write_parquet(partial, table, vectors)
            else:
                _write_json_lines(partial, table, vectors)
        files.append(file)
    if "npy" in formats:
        ids = path.with_name(f"{path.stem}.vectors.ids.txt")
        write_whole(ids, "".join(f"{name}\n" for name in table["id"]))
        files.append(ids)
    return files


def _write_array(file: Path, vectors: VectorFile) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)),
        "fortran_order": False,
        "shape": (len(vectors), vectors.num_features),
    }
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for batch in vectors.batches():
            stream.write(batch.tobytes())


def _with_rows(table: pd.DataFrame, vectors: VectorFile) -> Iterator[tuple[pd.DataFrame, Floats]]:
    """Yield the vectors batch by batch, each with its rows of the table."""
    first_row = 0
    for batch in vectors.batches():
        rows = table.iloc[first_row : first_row + len(batch)]
        yield rows.map(_plain), batch
        first_row += len(batch)


def _write_parquet(file: Path, table: pd.DataFrame, vectors: VectorFile) -> None:
    # The types of all batches are those of the whole table.
    types = pa.Table.from_pandas(table.map(_plain), preserve_index=False).schema
    schema = types.append(pa.field("vector", pa.list_(pa.float32(), vectors.num_features)))
    with pq.ParquetWriter(file, schema) as writer:
        for rows, batch in _with_rows(table, vectors):
            column = pa.FixedSizeListArray.from_arrays(
                pa.array(batch.ravel()), vectors.num_features
            )
            others = pa.Table.from_pandas(rows, schema=types, preserve_index=False)
            writer.write_table(others.append_column("vector", column).cast(schema))


def _write_json_lines(file: Path, table: pd.DataFrame, vectors: VectorFile) -> None:
    """Write an object per protein, as vector databases read them."""
    with file.open("w", encoding="utf-8") as stream:
        for rows, batch in _with_rows(table, vectors):
            for row, vector in zip(rows.to_dict("records"), batch.tolist(), strict=True):
                key = row.pop("id")
                metadata = {name: value for name, value in row.items() if pd.notna(value)}
                line = {"key": key, "vector": vector, "metadata": metadata}
                stream.write(json.dumps(line) + "\n")


def _plain(value: Any) -> Any:
    """Return a number, a truth value or text; None for a missing or infinite number."""
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if value is None or value is pd.NA or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def page(
    title: str,
    description: str,
    table: pd.DataFrame,
    maps: list[Projection],
    neighbors: Neighbors,
    labels: TransferredLabels | None,
) -> str:
    """Return the page.

    Args:
        title: title of the page.
        description: description of the data.
        table: ids in the first column, and columns to colour by.
        maps: maps of the rows.
        neighbors: nearest other proteins of each row.
        labels: transferred labels of the rows. The map is coloured by their column first.
    """
    first = None
    transferred = None
    shown = table
    if labels is not None:
        first = labels.column
        transferred = _transfer_data(labels)
        # Labels are names, also if they look like numbers.
        shown = table.astype({first: "string"})
    columns = []
    for name in shown.columns[1:]:
        column = _column(name, shown[name])
        if column is not None:
            columns.append(column)
    names = [column["name"] for column in columns]
    data: dict[str, Any] = {
        "title": title,
        "about": description,
        "ids": table.iloc[:, 0].tolist(),
        "maps": [
            {"name": one.name, "axes": one.axes, "xy": _coordinates(one.points)} for one in maps
        ],
        "columns": columns,
        "first": names.index(first) if first in names else 0,
        "neighbors": _encoded(neighbors.rows, np.uint32),
        "distances": _encoded(neighbors.distances, np.float32),
        "transfer": transferred,
    }
    # In a script element only "<" could end the text or begin a comment.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace("DATA", text, 1)


def _transfer_data(labels: TransferredLabels) -> dict[str, Any]:
    """Return the transferred labels for the page."""
    sources = labels.sources
    texts = (
        sources[["transferred", "nearest"]].astype(object).where(sources["nearest"].notna(), None)
    )
    return {
        "column": labels.column,
        "labels": texts["transferred"].tolist(),
        "ids": texts["nearest"].tolist(),
        "distances": _encoded(sources["distance"], np.float32),
    }


def _column(name: str, values: pd.Series) -> dict[str, Any] | None:
    """Return a column to colour by; None if it has no values or too many names."""
    if pd.api.types.is_numeric_dtype(values) and values.nunique() > MAX_NUMBERS_AS_NAMES:
        numbers = values.to_numpy(dtype=np.float32, na_value=np.nan)
        finite = numbers[np.isfinite(numbers)]
        return {
            "name": name,
            "values": _encoded(numbers, np.float32),
            "low": float(finite.min()),
            "high": float(finite.max()),
        }
    codes, names = pd.factorize(values.astype(str).where(values.notna()))
    if not 0 < len(names) <= MAX_CATEGORIES:
        print(
            f"the page has no colour for {name}: got {len(names):,} values, allowed are 1 to {MAX_CATEGORIES}"
        )
        return None
    return {
        "name": name,
        "names": names.tolist(),
        "codes": _encoded(np.where(codes < 0, NO_VALUE, codes), np.uint16),
    }


def _coordinates(points: Floats) -> str:
    """Return coordinates of 16 bits; both axes have one scale, and the points are centred."""
    moved = points - points.min(axis=0)
    extent = moved.max(axis=0)
    span = float(moved.max()) or 1.0
    return _encoded((moved + (span - extent) / 2) / span * MAX_COORDINATE, np.uint16)


def _encoded(values: Any, kind: Any) -> str:
    """Return numbers as base64 of their bytes."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()
