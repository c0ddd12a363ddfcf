"""Answers of the model as bodies of responses: JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .proteins import JSON

Answer = Mapping[str, Any]
"""Of one protein; all of a model have the same names, in one order. Values are numbers, texts, mappings of
names to numbers, vectors (tuples of numbers, as many for every protein), or lists, as one entry a residue."""


def write_answers(ids: Sequence[str], answers: Sequence[Answer], media_type: str) -> bytes:
    """In the order of the request."""
    if media_type == JSON:
        predictions = [{"id": name, **answer} for name, answer in zip(ids, answers, strict=True)]
        return json.dumps({"predictions": predictions}, allow_nan=False, separators=(",", ":")).encode()
    rows = [{"id": name, **_columns(answer)} for name, answer in zip(ids, answers, strict=True)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)
    return text.getvalue().encode()


def _columns(answer: Answer) -> dict[str, Any]:
    """A mapping is a column for each name, a vector one for each number, a list a single one."""
    columns: dict[str, Any] = {}
    for name, value in answer.items():
        if isinstance(value, Mapping):
            columns |= {f"{name}_{key}": item for key, item in value.items()}
        elif isinstance(value, tuple):
            columns |= {f"{name}_{index}": item for index, item in enumerate(value)}
        elif isinstance(value, list):
            columns[name] = ";".join(map(str, value))
        else:
            columns[name] = value
    return columns
