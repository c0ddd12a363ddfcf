"""What the commands of inference have written, as rows."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def rows(path: Path) -> list[dict[str, Any]]:
    """Of Parquet, or of CSV with texts for numbers."""
    if path.suffix == ".parquet":
        found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return found
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))
