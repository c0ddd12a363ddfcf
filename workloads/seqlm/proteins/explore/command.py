"""Map of embeddings as one HTML page, and exports of them (``seqlm explore``).

The input is the Parquet file of ``seqlm embed``. A table with the same ids adds columns. Their values colour
the map, and the labels of one column are transferred to each protein from the nearest labelled one. The page
has no vectors, sends no requests and escapes all text.
"""

import base64
import json
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
from seqlm.proteins.inference.output_file import output_file
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.policies import Kind
from seqlm.runs.run_file import RunFile
from seqlm.training.whole_file import write_whole, writing_whole

from .columns import ProteinColumns, protein_columns
from .projection import Floats, Neighbors, Projection, Transfer, neighbors, projections, transfer
from .vectors import VectorFile

Ints = npt.NDArray[np.int64]
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
LEAST_TO_SPLIT = 3
"""Smallest number of transferred labels that are compared by distance."""


@dataclass(frozen=True)
class TransferredLabels:
    """Labels of proteins from the nearest labelled one."""

    column: str
    """Column of the labels."""
    sources: pd.DataFrame
    """Transferred label, and id and distance of the protein that it comes from, for each protein."""


class _Labels:
    """Labels of a column, and those that each protein gets from the nearest labelled one.

    Args:
        columns: columns of all proteins.
        name: name of the column.
        transfer: nearest labelled protein of each one.
    """

    def __init__(self, columns: ProteinColumns, name: str, transfer: Transfer) -> None:
        self._columns = columns
        self._name = name
        self._transfer = transfer
        self._labels = columns.column(name).astype("string")

    def of(self, proteins: slice | Ints) -> TransferredLabels:
        """Return the labels that some proteins get."""
        nearest = self._transfer.nearest[proteins]
        is_found = nearest >= 0
        rows = self._columns.rows[np.where(is_found, nearest, 0)]
        labels = self._labels.iloc[rows].reset_index(drop=True).where(is_found)
        ids = self._columns.ids.iloc[rows].reset_index(drop=True).where(is_found)
        distances = self._transfer.distances[proteins]
        sources = pd.DataFrame({"transferred": labels, "nearest": ids, "distance": distances})
        return TransferredLabels(self._name, sources)


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
    columns = protein_columns(vectors, config, counts)
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = _transfer(columns, vectors, options, path) if options.label else None
    for file in _export(path, columns, vectors, options.export):
        print(f"wrote {file}")
    if len(shown) < len(vectors):
        print(f"the map has {len(shown):,} of {len(vectors):,} proteins, drawn with a fixed seed")
    print(
        f"projecting {len(shown):,} embeddings of {vectors.num_features:,} features, and searching "
        "neighbours"
    )
    rows = columns.of(vectors.ids_of(shown), shown)
    transferred = labels.of(shown) if labels is not None else None
    html = page(
        path.stem, vectors.description, rows, projections(points), neighbors(points), transferred
    )
    write_whole(path, html)
    print(f"wrote {path}: map of {len(rows):,} proteins")
    not_drawn = Counter({Kind.NOT_DRAWN: len(vectors) - len(rows)})
    for one in [Counts("proteins", len(rows), not_drawn), *counts]:
        print(one.line())


def _drawn(count: int, max_proteins: int) -> npt.NDArray[np.int64]:
    """Return the rows of the proteins on the map, in order."""
    if count <= max_proteins:
        return np.arange(count)
    rows = np.arange(count, dtype=np.uint32)  # half the memory of other numbers, in the same order
    return np.sort(np.random.default_rng(SEED).permutation(rows)[:max_proteins]).astype(np.int64)


def _transfer(
    columns: ProteinColumns, vectors: VectorFile, options: ExploreConfig, path: Path
) -> _Labels:
    """Transfer the labels, write them as a table and print how many agree."""
    label = str(options.label)
    values = columns.column(label)
    labels = values.astype(str).where(values.notna())
    is_reference = labels.notna().to_numpy()[columns.rows]
    is_asked = np.ones(len(vectors), dtype=bool)
    where = ""
    if options.split:
        split = columns.column(options.split).astype(str)
        is_asked = ~split.isin(options.reference).to_numpy()[columns.rows]
        is_reference &= ~is_asked
        where = f" and one of {', '.join(options.reference)} in {options.split}"
    if not is_reference.any():
        raise ValueError(
            f"explore.label: no protein has a value of {label}{where}; name another column, or another "
            "explore.reference"
        )
    found = transfer(vectors.batches, is_reference)
    transferred = _Labels(columns, label, found)
    is_written = is_asked & (found.nearest >= 0)
    file = path.with_name(f"{path.stem}.transfer.csv")
    with writing_whole(file) as partial, partial.open("w", encoding="utf-8") as stream:
        first = 0
        for ids in vectors.id_batches():
            batch = slice(first, first + len(ids))
            own = labels.iloc[columns.rows[batch]].reset_index(drop=True).rename("label")
            parts = [pd.DataFrame({"id": ids}), own, transferred.of(batch).sources]
            rows = pd.concat(parts, axis=1)[is_written[batch]]
            rows.to_csv(stream, index=False, lineterminator="\n", header=first == 0)
            first += len(ids)
    print(
        f"wrote {file}: {label} of {is_written.sum():,} proteins, from the nearest of {is_reference.sum():,}"
    )
    _print_agreement(labels, columns, found, is_written)
    return transferred


def _print_agreement(
    labels: pd.Series,
    columns: ProteinColumns,
    found: Transfer,
    is_written: npt.NDArray[np.bool_],
) -> None:
    """Print the share of proteins with a label that get the same label, also by distance.

    Args:
        labels: labels of the rows of the table.
        columns: columns of all proteins.
        found: nearest labelled protein of each one.
        is_written: (N,) whether a protein counts.
    """
    codes = pd.factorize(labels)[0]  # -1 without a label
    known = np.flatnonzero(is_written & (codes[columns.rows] >= 0))
    if len(known) < LEAST_TO_SPLIT:
        return
    own = codes[columns.rows[known]]
    transferred = codes[columns.rows[found.nearest[known]]]
    agrees = pd.Series(own == transferred)
    ranks = pd.Series(found.distances[known]).rank(method="first")
    thirds = pd.qcut(ranks, 3, labels=["near", "middle", "far"])
    by_distance = agrees.groupby(thirds, observed=True).mean()
    shares = ", ".join(f"{name} {share:.3f}" for name, share in by_distance.items())
    print(
        f"transferred labels that are right: {agrees.mean():.3f} of {len(known):,}; by distance: {shares}"
    )


def _export(
    path: Path, columns: ProteinColumns, vectors: VectorFile, formats: Collection[str]
) -> list[Path]:
    """Write the embeddings in other formats; each file appears whole or not at all."""
    if "vector" in columns.values and "parquet" in formats:
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
                _write_parquet(partial, columns, vectors)
            else:
                _write_json_lines(partial, columns, vectors)
        files.append(file)
    if "npy" in formats:
        ids = path.with_name(f"{path.stem}.vectors.ids.txt")
        with writing_whole(ids) as partial, partial.open("w", encoding="utf-8") as stream:
            for batch in vectors.id_batches():
                stream.writelines(f"{name}\n" for name in batch)
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


def _with_rows(
    columns: ProteinColumns, vectors: VectorFile
) -> Iterator[tuple[pd.DataFrame, Floats]]:
    """Yield the vectors batch by batch, each with the ids and columns of its proteins."""
    first = 0
    for ids, batch in vectors.batches_with_ids():
        proteins = slice(first, first + len(ids))
        yield columns.of(ids, proteins).map(_plain), batch
        first += len(ids)


def _write_parquet(file: Path, columns: ProteinColumns, vectors: VectorFile) -> None:
    # The types of all batches are those of all values.
    used = np.unique(columns.rows)
    one_id = next(vectors.id_batches())[:1] * len(used)
    values = columns.values.iloc[used].reset_index(drop=True)
    table = pd.concat([pd.DataFrame({"id": one_id}), values], axis=1)
    types = pa.Table.from_pandas(table.map(_plain), preserve_index=False).schema
    schema = types.append(pa.field("vector", pa.list_(pa.float32(), vectors.num_features)))
    with pq.ParquetWriter(file, schema) as writer:
        for rows, batch in _with_rows(columns, vectors):
            column = pa.FixedSizeListArray.from_arrays(
                pa.array(batch.ravel()), vectors.num_features
            )
            others = pa.Table.from_pandas(rows, schema=types, preserve_index=False)
            writer.write_table(others.append_column("vector", column).cast(schema))


def _write_json_lines(file: Path, columns: ProteinColumns, vectors: VectorFile) -> None:
    """Write an object per protein, as vector databases read them."""
    with file.open("w", encoding="utf-8") as stream:
        for rows, batch in _with_rows(columns, vectors):
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
