"""Read the tables that the commands of inference write."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of Parquet, or of CSV with numbers as text."""
    if path.suffix == ".parquet":
        found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return found
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))
