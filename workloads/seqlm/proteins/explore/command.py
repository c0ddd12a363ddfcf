"""Map of embeddings as one HTML page, and exports of them (``seqlm explore``).

The input is the Parquet file of ``seqlm embed``. A table with the same ids adds columns. Their values colour
the map, and the labels of one column are transferred to each protein from the nearest labelled one. The page
has no vectors, sends no requests and escapes all text.
"""

import base64
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from seqlm.proteins.config import ExploreConfig
from seqlm.proteins.finetune.prepare import TABLES
from seqlm.proteins.inference.output_file import output_file
from seqlm.runs.run_file import RunFile
from seqlm.training.data.table_rows import CSV_DELIMITERS, PARQUET_SUFFIXES
from seqlm.training.whole_file import write_whole, writing_whole

from .projection import Floats, Projection, Transfer, neighbors, projections, transfer

SEED = 0
TEMPLATE = Path(__file__).with_name("page.html")
NO_VALUE = 65_535
MAX_CATEGORIES = 1_000


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
    ids, vectors, about = _read(source, options.vectors)
    table = _with_columns(pd.DataFrame({"id": ids}), config)
    path.parent.mkdir(parents=True, exist_ok=True)
    transferred = _transfer(table, vectors, options, path) if options.label else None
    for file in _export(path, table, vectors, options.export):
        print(f"wrote {file}")
    shown = np.arange(len(ids))
    if len(ids) > options.max_proteins:
        drawn = np.random.default_rng(SEED).permutation(len(ids))[: options.max_proteins]
        shown = np.sort(drawn)
        print(f"the map has {len(shown):,} of {len(ids):,} proteins, drawn with a fixed seed")
    print(f"projecting {len(shown):,} embeddings of {vectors.shape[1]:,} features, and searching neighbours")
    points, rows = vectors[shown], table.iloc[shown].reset_index(drop=True)
    sources = None
    if transferred is not None:
        taken = transferred.sources(table, str(options.label))
        sources = taken.iloc[shown].reset_index(drop=True)
    html = page(path.stem, about, rows, projections(points), neighbors(points), options.label, sources)
    write_whole(path, html)
    print(f"wrote {path}: map of {len(rows):,} proteins")


def _read(source: Path, column: str | None) -> tuple[list[str], Floats, str]:
    """Return ids, vectors (N, C) and a description."""
    try:
        with pq.ParquetFile(source) as file:
            schema, metadata = file.schema_arrow, file.schema_arrow.metadata or {}
            known = [each.name for each in schema if pa.types.is_fixed_size_list(each.type)]
            if "id" not in schema.names or not known:
                raise ValueError(
                    f"explore.embeddings: {source} has no column id, or no vector per protein; "
                    "write it with seqlm embed and a pooling other than none"
                )
            name = column or known[0]
            if name not in known or (column is None and len(known) > 1):
                raise ValueError(f"explore.vectors: got {column}; {source} has {', '.join(known)}")
            table = file.read(columns=["id", name])
    except OSError as error:
        raise ValueError(
            f"explore.embeddings: {source} cannot be read: {error}; run seqlm embed first"
        ) from None
    except pa.ArrowInvalid as error:
        raise ValueError(f"explore.embeddings: {source} is not a Parquet file: {error}") from None
    lists = table[name].combine_chunks()
    size = lists.type.list_size
    vectors = np.asarray(lists.flatten()).reshape(-1, size).astype(np.float32)
    if len(vectors) < 2 or not np.isfinite(vectors).all():
        raise ValueError(
            f"explore.embeddings: {source} has {len(vectors):,} embeddings, in which "
            f"{(~np.isfinite(vectors)).sum():,} numbers are not finite; give at least two of finite numbers"
        )
    written = json.loads(metadata.get(b"esm2", b"{}"))
    model = "/".join(Path(str(written.get("model", ""))).parts[-3:])
    parts = (f"{len(vectors):,} proteins, {size:,} features", model, "" if name == "embedding" else name)
    return table["id"].to_pylist(), vectors, " · ".join(part for part in parts if part)


def _with_columns(table: pd.DataFrame, config: RunFile) -> pd.DataFrame:
    """Add the columns of ``explore.table``, or of the run's table of labels, by id."""
    options, task = config.explore, config.task
    wanted = [*options.columns, *filter(None, (options.label, options.split))]
    is_asked = bool(options.table or wanted)
    files = options.table or (task.table if task else ())
    local = [TABLES.sample if name == "sample" else Path(name) for name in files]
    if not is_asked:
        local = [path for path in local if path.is_file() and _form(path)]
    if not local:
        if is_asked:
            raise ValueError(f"explore.table: got none; name the table with the column {wanted[0]}")
        return table
    key = config.inference.id_column or (task.id_column if task else "id")
    sequence = config.inference.sequence_column or (task.sequence_column if task else "sequence")
    known = pd.concat([_table(path, key) for path in local])
    if missing := [name for name in (key, *wanted) if name not in known]:
        raise ValueError(f"explore.table: no column {missing[0]}; the columns are {', '.join(known.columns)}")
    ids = known[key].astype(str)
    if len(repeated := ids[ids.duplicated()]):
        raise ValueError(
            f"explore.table: the id {repeated.iloc[0]} occurs more than once; give each protein one row"
        )
    found = ids.isin(table["id"]).sum()
    if not found:
        message = (
            f"explore.table: none of its ids, such as {ids.iloc[0]}, is an id of the embeddings, such as "
            f"{table['id'].iloc[0]}"
        )
        if is_asked:
            raise ValueError(f"{message}; set inference.id_column")
        print(f"note: {message}")
        return table
    print(f"rows of the table: {found:,} of {len(table):,} proteins have one")
    others = [
        n for n in known.columns if n not in (key, "id", sequence) and not str(n).startswith("Unnamed:")
    ]
    columns = list(dict.fromkeys([*(options.columns or others), *wanted]))
    # Whole numbers stay whole, also in columns with gaps: folds are compared as text.
    given = known[columns].convert_dtypes().set_axis(ids, axis=0)
    values = given.reindex(table["id"]).reset_index(drop=True)
    return pd.concat([table, values.rename(columns={"id": "id of the table"})], axis=1)


def _form(path: Path) -> str | None:
    """Return the separator of a text table, an empty one for Parquet; None for other files."""
    ends = {**CSV_DELIMITERS, ".tab": "\t", **dict.fromkeys(PARQUET_SUFFIXES, "")}
    return ends.get(Path(path.name.removesuffix(".gz")).suffix.lower())


def _table(path: Path, key: str) -> pd.DataFrame:
    try:
        if (separator := _form(path)) == "":
            return pd.read_parquet(path)
        # Ids may look like numbers, and labels like missing values.
        text: dict[str, Any] = {"keep_default_na": False, "na_values": [""], "skipinitialspace": True}
        head = pd.read_csv(path, sep=separator or ",", nrows=0, **text)
        as_text = {name: str for name in head.columns if str(name).strip() == key}
        read = pd.read_csv(path, sep=separator or ",", dtype=as_text, **text)
        return read.rename(columns=lambda name: str(name).strip())
    except (OSError, ValueError) as error:
        raise ValueError(f"explore.table: {path} cannot be read: {error}") from None


def _transfer(table: pd.DataFrame, vectors: Floats, options: ExploreConfig, path: Path) -> Transfer:
    """Transfer the labels, write them as a table and print how many agree."""
    label = str(options.label)
    labels = table[label].astype(str).where(table[label].notna())
    is_reference = labels.notna().to_numpy()
    is_asked = np.ones(len(table), dtype=bool)
    if options.split:
        is_asked = ~table[options.split].astype(str).isin(options.reference).to_numpy()
        is_reference = is_reference & ~is_asked  # pandas' arrays are read-only
    if not is_reference.any():
        where = f" and one of {', '.join(options.reference)} in {options.split}" * bool(options.split)
        raise ValueError(
            f"explore.label: no protein has a value of {label}{where}; name another column, or another "
            "explore.reference"
        )
    found = transfer(vectors, is_reference)
    taken = found.sources(table, label)
    asked = is_asked & (found.nearest >= 0)
    result = pd.concat([table[["id"]], labels.rename("label"), taken], axis=1)[asked]
    file = path.with_name(f"{path.stem}.transfer.csv")
    write_whole(file, result.to_csv(index=False, lineterminator="\n"))
    known = result[result["label"].notna()]
    print(f"wrote {file}: {label} of {len(result):,} proteins, from the nearest of {is_reference.sum():,}")
    if len(known) >= 3:
        agrees = known["label"] == known["transferred"]
        thirds = pd.qcut(known["distance"].rank(method="first"), 3, labels=["near", "middle", "far"])
        shares = ", ".join(
            f"{name} {share:.3f}" for name, share in agrees.groupby(thirds, observed=True).mean().items()
        )
        print(
            f"transferred labels that are right: {agrees.mean():.3f} of {len(known):,}; by distance: {shares}"
        )
    return found


def _export(path: Path, table: pd.DataFrame, vectors: Floats, formats: Collection[str]) -> list[Path]:
    """Write the embeddings in other formats; each file appears whole or not at all."""
    written = []
    size = vectors.shape[1]
    if "vector" in table and "parquet" in formats:
        raise ValueError("explore.columns: got vector, which is the exported vector; rename it in the table")
    for form in formats:
        file = path.with_name(f"{path.stem}.vectors.{form}")
        with writing_whole(file) as partial:
            if form == "npy":
                with partial.open("wb") as stream:
                    np.save(stream, vectors)
            elif form == "parquet":
                column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), size)
                others = pa.Table.from_pandas(table.map(_plain), preserve_index=False)
                pq.write_table(others.append_column("vector", column), partial)
            else:
                with partial.open("w", encoding="utf-8") as lines:
                    for row, vector in zip(
                        table.map(_plain).to_dict("records"), vectors.tolist(), strict=True
                    ):
                        key = row.pop("id")
                        metadata = {name: value for name, value in row.items() if pd.notna(value)}
                        lines.write(json.dumps({"key": key, "vector": vector, "metadata": metadata}) + "\n")
        written.append(file)
    if "npy" in formats:
        rows = path.with_name(f"{path.stem}.vectors.ids.txt")
        write_whole(rows, "".join(f"{name}\n" for name in table["id"]))
        written.append(rows)
    return written


def _plain(value: Any) -> Any:
    """Return a number, a truth value or text; None for a missing or infinite number."""
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return (
        value
        if value is None or value is pd.NA or isinstance(value, bool | int | float | str)
        else str(value)
    )


def page(
    title: str,
    about: str,
    table: pd.DataFrame,
    maps: list[Projection],
    neighbors: tuple[Any, Floats],
    label: str | None,
    sources: pd.DataFrame | None,
) -> str:
    """Return the page.

    Args:
        title: title.
        about: description of the data.
        table: ids in the first column, and columns to colour by.
        maps: maps of the rows.
        neighbors: rows of the nearest proteins and their distances, (N, K) each.
        label: column of the labels, which is coloured first.
        sources: transferred label, id and distance of the protein that it comes from, for each row.
    """
    # Labels are names, also if they look like numbers.
    shown = table.astype({label: "string"}) if label else table
    columns = [column for name in shown.columns[1:] if (column := _column(name, shown[name]))]
    names = [column["name"] for column in columns]
    data: dict[str, Any] = {
        "title": title,
        "about": about,
        "ids": table.iloc[:, 0].tolist(),
        "maps": [{"name": one.name, "axes": one.axes, "xy": _coordinates(one.points)} for one in maps],
        "columns": columns,
        "first": names.index(label) if label in names else 0,
        "neighbors": _encoded(neighbors[0], np.uint32),
        "distances": _encoded(neighbors[1], np.float32),
        "transfer": None,
    }
    if label and sources is not None:
        texts = sources[["transferred", "nearest"]].astype(object).where(sources["nearest"].notna(), None)
        data["transfer"] = {
            "column": label,
            "labels": texts["transferred"].tolist(),
            "ids": texts["nearest"].tolist(),
            "distances": _encoded(sources["distance"], np.float32),
        }
    # In a script element only "<" could end the text or begin a comment.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace("DATA", text, 1)


def _column(name: str, values: pd.Series) -> dict[str, Any] | None:
    """Return a column to colour by; None if it has no values or too many names."""
    if pd.api.types.is_numeric_dtype(values) and values.nunique() > 12:
        numbers = values.to_numpy(dtype=np.float32, na_value=np.nan)
        finite = numbers[np.isfinite(numbers)]
        low, high = float(finite.min()), float(finite.max())
        return {"name": name, "values": _encoded(numbers, np.float32), "low": low, "high": high}
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
    """Return coordinates of 16 bits; both axes have one scale."""
    low = points.min(axis=0)
    span = float((points - low).max()) or 1.0
    return _encoded((points - low + (span - (points - low).max(axis=0)) / 2) / span * 65_535, np.uint16)


def _encoded(values: Any, kind: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()
