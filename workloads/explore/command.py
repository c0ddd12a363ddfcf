"""Map of embeddings as one HTML page, and exports of them (``seqlm explore``).

The input is the Parquet file of ``seqlm embed``. A table with the same ids adds columns. Their values colour
the map, and the labels of one column are transferred to each protein from the nearest labelled one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from workloads.esm2.finetune.prepare import TABLES
from workloads.esm2.inference.output_file import output_file
from workloads.run_file import ExploreConfig, RunFile
from workloads.training.whole_file import write_whole, writing_whole

from .page import page
from .projection import Floats, Transfer, neighbors, projections, transfer

SEED = 0


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
    if len(ids) > options.max_proteins:
        kept = np.sort(np.random.default_rng(SEED).permutation(len(ids))[: options.max_proteins])
        print(
            f"showing {len(kept):,} of {len(ids):,} proteins, drawn with a fixed seed (explore.max_proteins)"
        )
        table, vectors = table.iloc[kept].reset_index(drop=True), vectors[kept]
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"projecting {len(vectors):,} embeddings of {vectors.shape[1]:,} features")
    maps = projections(vectors)
    print("searching neighbours")
    found = neighbors(vectors)
    transferred = _transfer(table, vectors, options, path) if options.label else None
    write_whole(path, page(path.stem, about, table, maps, found, transferred))
    print(f"wrote {path}: map of {len(table):,} proteins")
    for file in _export(path, table, vectors, options.export):
        print(f"wrote {file}")


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
    """Add the columns of ``explore.table`` by id."""
    options, task = config.explore, config.task
    files = options.table or (task.table if task else ())
    if not files:
        if wanted := [*options.columns, *filter(None, (options.label, options.split))]:
            raise ValueError(f"explore.table: got none; name the table with the column {wanted[0]}")
        return table
    key = config.inference.id_column or (task.id_column if task else "id")
    sequence = config.inference.sequence_column or (task.sequence_column if task else "sequence")
    known = pd.concat([_table(TABLES.sample if name == "sample" else Path(name)) for name in files])
    if key not in known or (
        wrong := {*options.columns, options.label, options.split} - {None, *known.columns}
    ):
        name = key if key not in known else sorted(map(str, wrong))[0]
        raise ValueError(f"explore.table: no column {name}; the columns are {', '.join(known.columns)}")
    # Whole numbers stay whole, also in columns with gaps: folds are compared as text.
    known = known.rename(columns={key: "id"}).astype({"id": str}).convert_dtypes()
    if len(repeated := known["id"][known["id"].duplicated()]):
        raise ValueError(
            f"explore.table: the id {repeated.iloc[0]} occurs more than once; give each protein one row"
        )
    others = [n for n in known.columns if n not in ("id", sequence) and not str(n).startswith("Unnamed:")]
    used = [*(options.columns or others), *filter(None, (options.label, options.split))]
    columns = list(dict.fromkeys(used))
    joined = table.merge(known[["id", *columns]], how="left", on="id")
    if not known["id"].isin(table["id"]).any():
        raise ValueError(
            f"explore.table: none of its ids, such as {known['id'].iloc[0]}, is an id of the embeddings, "
            f"such as {table['id'].iloc[0]}; set inference.id_column"
        )
    return joined


def _table(path: Path) -> pd.DataFrame:
    name = path.name.removesuffix(".gz")
    try:
        if name.endswith((".parquet", ".pq")):
            return pd.read_parquet(path)
        return pd.read_csv(path, sep="\t" if name.endswith((".tsv", ".tab")) else ",")
    except (OSError, ValueError) as error:
        raise ValueError(f"explore.table: {path} cannot be read: {error}") from None


def _transfer(
    table: pd.DataFrame, vectors: Floats, options: ExploreConfig, path: Path
) -> tuple[str, Transfer]:
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
    rows = np.flatnonzero(is_asked & (found.nearest >= 0))
    nearest = found.nearest[rows]
    result = pd.DataFrame(
        {
            "id": table["id"].iloc[rows].to_numpy(),
            "label": labels.iloc[rows].to_numpy(),
            "transferred": labels.iloc[nearest].to_numpy(),
            "nearest": table["id"].iloc[nearest].to_numpy(),
            "distance": found.distances[rows],
        }
    )
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
    return label, found


def _export(path: Path, table: pd.DataFrame, vectors: Floats, formats: Iterable[str]) -> list[Path]:
    """Write the embeddings in other formats; each file appears whole or not at all."""
    written = []
    size = vectors.shape[1]
    for form in formats:
        file = path.with_name(f"{path.stem}.vectors.{form}")
        with writing_whole(file) as partial:
            if form == "npy":
                with partial.open("wb") as stream:
                    np.save(stream, vectors)
            elif form == "parquet":
                column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), size)
                others = pa.Table.from_pandas(table, preserve_index=False)
                pq.write_table(others.append_column("vector", column), partial)
            else:
                with partial.open("w", encoding="utf-8") as lines:
                    for row, vector in zip(table.to_dict("records"), vectors.tolist(), strict=True):
                        key = row.pop("id")
                        metadata = {name: value for name, value in row.items() if pd.notna(value)}
                        lines.write(json.dumps({"key": key, "vector": vector, "metadata": metadata}) + "\n")
        written.append(file)
    if "npy" in formats:
        rows = path.with_name(f"{path.stem}.vectors.ids.txt")
        write_whole(rows, "".join(f"{name}\n" for name in table["id"]))
        written.append(rows)
    return written
