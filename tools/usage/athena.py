"""Queries of Athena, which bills each of them by the bytes that it reads."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seqlm.training.strict_yaml import shown

POLL_SECONDS = 2.0
LIMIT_SECONDS = 600.0
"""Time limit for a query."""
OVER = {"SUCCEEDED", "FAILED", "CANCELLED"}
Row = Mapping[str, str | None]
"""Values of a row by column, as text; None is NULL."""


@dataclass(frozen=True)
class Answer:
    rows: list[Row]
    scanned_bytes: int
    """Bytes that the query read."""


def run_query(athena: Any, query: str, *, database: str, workgroup: str) -> Answer:
    """Run a query, and wait for its rows.

    Raises:
        ValueError: if Athena ends the query without a result, or does not end it in time.
    """
    query_id = athena.start_query_execution(
        QueryString=query,
        QueryExecutionContext={"Database": database},
        WorkGroup=workgroup,
    )["QueryExecutionId"]
    execution = _wait(athena, query_id)
    status = execution["Status"]
    if status["State"] != "SUCCEEDED":
        reason = status.get("StateChangeReason", "without a reason")
        raise ValueError(f"Athena: query {query_id} is {status['State']}: {shown(reason)}")
    pages = athena.get_paginator("get_query_results").paginate(QueryExecutionId=query_id)
    # The first row has the names of the columns.
    header, *rows = [_cells(row) for page in pages for row in page["ResultSet"]["Rows"]]
    names = [name or "" for name in header]
    return Answer(
        [dict(zip(names, row, strict=True)) for row in rows],
        execution.get("Statistics", {}).get("DataScannedInBytes", 0),
    )


def _cells(row: Mapping[str, Any]) -> list[str | None]:
    return [cell.get("VarCharValue") for cell in row["Data"]]


def _wait(athena: Any, query_id: str) -> Mapping[str, Any]:
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        execution: Mapping[str, Any] = athena.get_query_execution(QueryExecutionId=query_id)[
            "QueryExecution"
        ]
        if execution["Status"]["State"] in OVER:
            return execution
        if time.monotonic() > deadline:
            raise ValueError(
                f"Athena: query {query_id} still runs after {LIMIT_SECONDS:g} seconds; see its state with "
                f"`aws athena get-query-execution --query-execution-id {query_id}`"
            )
        time.sleep(POLL_SECONDS)
