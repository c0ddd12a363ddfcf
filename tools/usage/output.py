"""Forms of a bill: text, JSON, CSV and a page."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from seqlm.training.report.page import Card, card_block, note, page, section, table
from tools.command_line import format_table
from tools.usage.period import second_text
from tools.usage.team_bill import Amount, JobOnType, TeamBill, Total

MOST_ROWS = 15
"""Most rows of a table in the terminal."""
MOST_ROWS_OF_PAGE = 500
"""Most rows of a table in the page. The CSV file has all jobs."""
WHERE_ALL_ARE = (
    "Tables have the largest entries. --csv FILE writes all jobs; --json has all entries."
)
NOTHING = "(none)"
"""Name of a missing user or team."""
COLUMNS = (
    "job",
    "name",
    "user",
    "account",
    "partition",
    "instance_type",
    "states",
    "first_start",
    "last_end",
    "node_hours",
    "gpu_hours",
    "usd",
)
"""Columns of the CSV file, and fields of a job in JSON."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""Starts of a text that a spreadsheet program would compute."""


def _of_account(job: JobOnType) -> str:
    return job.account or NOTHING


def _of_user(job: JobOnType) -> str:
    return job.user or NOTHING


def _of_type(job: JobOnType) -> str:
    return job.instance_type


def _of_job(job: JobOnType) -> str:
    return " ".join(filter(None, (job.job, job.name, f"({job.user})" if job.user else "")))


KEYS: Mapping[str, Callable[[JobOnType], str]] = {
    "account": _of_account,
    "user": _of_user,
    "instance type": _of_type,
    "job": _of_job,
}
"""Properties by which jobs are added up, in the order of the tables."""


def as_text(title: str, bill: TeamBill, notes: Sequence[str]) -> str:
    """Return the bill as text with less than 100 lines."""
    parts = [title]
    is_cut = False
    for name, key in KEYS.items():
        totals = bill.totals(key)
        is_cut |= len(totals) > MOST_ROWS
        if name == "user" and [total.name for total in totals] == [NOTHING]:
            continue
        header, rows = _rows(name, totals, bill, MOST_ROWS)
        if name == "account":
            rows += _sums(bill)
        if rows:
            parts.append(format_table(header, [[printable(cell) for cell in row] for row in rows]))
    if is_cut:
        parts.append(WHERE_ALL_ARE)
    parts.append("\n".join(notes))
    return "\n\n".join(parts)


def as_json(bill: TeamBill) -> dict[str, Any]:
    """Return the bill as values of JSON; ``tools/json_forms.py`` describes them."""
    return {
        "since": second_text(bill.period.since),
        "until": second_text(bill.period.until),
        "accounts": [_total_fields(total) for total in bill.totals(_of_account)],
        "users": [_total_fields(total) for total in bill.totals(_of_user)],
        "instance_types": [_total_fields(total) for total in bill.totals(_of_type)],
        "jobs": list(_job_fields(bill)),
        "used": _amount_fields(bill.used),
        "idle": _amount_fields(bill.idle),
        "capacity": _amount_fields(bill.capacity),
        "without_end": list(bill.without_end),
    }


def as_csv(bill: TeamBill) -> str:
    """Return a table with a row for each job, and for each instance type that it had."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for fields in _job_fields(bill):
        row = {name: "" if value is None else value for name, value in fields.items()}
        row["states"] = " ".join(fields["states"])
        row["name"] = without_formula(fields["name"])
        writer.writerow(row)
    return text.getvalue()


def as_page(title: str, subtitle: str, bill: TeamBill, notes: Sequence[str]) -> str:
    """Return the bill as an HTML page."""
    capacity = bill.capacity
    used = bill.used
    cards = [
        Card("USD of jobs", _usd(used)),
        Card("GPU hours of jobs", f"{used.gpu_hours:,.1f}"),
        Card("Node hours of jobs", f"{used.node_hours:,.1f}"),
        Card("USD of idle nodes", _usd(bill.idle)),
        Card("Idle share", _share(bill.idle, capacity), "of node hours"),
    ]
    parts = [card_block(cards), *(note(text) for text in notes)]
    for name, key in KEYS.items():
        header, rows = _rows(name, bill.totals(key), bill, MOST_ROWS_OF_PAGE)
        if name == "account":
            rows += _sums(bill)
        parts.append(section(f"By {name}", table(header, rows)))
    return page(title, subtitle, "", parts)


def idle_share(bill: TeamBill) -> str:
    """Return a sentence on the share of the capacity that stayed idle."""
    shares = [f"{_share(bill.idle, bill.capacity)} of node hours"]
    if bill.capacity.gpu_hours:
        shares.append(f"{bill.idle.gpu_hours / bill.capacity.gpu_hours:.1%} of GPU hours")
    return f"Idle: {', '.join(shares)}."


def _rows(
    name: str, totals: Sequence[Total], bill: TeamBill, most: int
) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table; the last row sums up those above the limit."""
    header = [name, "jobs", "node hours", "GPU hours", "USD", "share"]
    shown = totals if len(totals) <= most else totals[: most - 1]
    rows = [_row(total.name, str(total.num_jobs), total.amount, bill) for total in shown]
    others = totals[len(shown) :]
    if others:
        rest = sum((total.amount for total in others), Amount())
        rows.append(_row(f"{len(others)} others", "", rest, bill))
    return header, rows


def _sums(bill: TeamBill) -> list[list[str]]:
    """Return the rows below the teams."""
    num_jobs = len({use.job.job for use in bill.uses})
    return [
        _row("all jobs", str(num_jobs), bill.used, bill),
        _row("idle", "", bill.idle, bill),
        _row("capacity", "", bill.capacity, bill),
    ]


def _row(name: str, num_jobs: str, amount: Amount, bill: TeamBill) -> list[str]:
    return [
        name,
        num_jobs,
        f"{amount.node_hours:,.2f}",
        f"{amount.gpu_hours:,.2f}",
        _usd(amount),
        _share(amount, bill.capacity),
    ]


def _usd(amount: Amount) -> str:
    """Return the dollars, and whether hours without a price are missing in them."""
    if not amount.unpriced_node_hours:
        return f"{amount.usd:,.2f}"
    return f"at least {amount.usd:,.2f}" if amount.usd else "not known"


def _share(amount: Amount, capacity: Amount) -> str:
    """Return the share of the node hours of the cluster."""
    if not capacity.node_hours:
        return "-"
    return f"{amount.node_hours / capacity.node_hours:.1%}"


def _total_fields(total: Total) -> dict[str, Any]:
    return {"name": total.name, "num_jobs": total.num_jobs, **_amount_fields(total.amount)}


def _amount_fields(amount: Amount) -> dict[str, Any]:
    """Return the fields of an amount; ``usd`` lacks the hours without a price."""
    return {
        "node_hours": round(amount.node_hours, 6),
        "gpu_hours": round(amount.gpu_hours, 6),
        "usd": round(amount.usd, 6),
        "unpriced_node_hours": round(amount.unpriced_node_hours, 6),
    }


def _job_fields(bill: TeamBill) -> Iterator[dict[str, Any]]:
    """Yield the values of each job; ``usd`` is None without a price."""
    for use in bill.uses:
        amount = use.amount
        yield {
            "job": use.job.job,
            "name": use.job.name,
            "user": use.job.user,
            "account": use.job.account,
            "partition": use.job.partition,
            "instance_type": use.job.instance_type,
            "states": use.states,
            "first_start": second_text(use.first_start),
            "last_end": None if use.last_end is None else second_text(use.last_end),
            "node_hours": round(amount.node_hours, 6),
            "gpu_hours": round(amount.gpu_hours, 6),
            "usd": None if amount.unpriced_node_hours else round(amount.usd, 6),
        }


def without_formula(text: str) -> str:
    """Return a text that no spreadsheet program computes, by an apostrophe before it."""
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def printable(text: str) -> str:
    """Replace the control characters that the name of a job may have."""
    return "".join(character if character.isprintable() else "?" for character in text)
