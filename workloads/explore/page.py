"""HTML page with a map of embeddings. It has no vectors, sends no requests and escapes all text."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .projection import Floats, Projection

TEMPLATE = Path(__file__).with_name("page.html")
NO_VALUE = 65_535
MAX_CATEGORIES = 1_000


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
