"""Growth benchmark: the cost of each kind of work at three sizes, and what follows for larger ones.

``python -m benchmarks.growth --only NAME --out FOLDER``

Each row of ``benchmarks/growth/rows.py`` is run at its sizes, from the smallest one on. A cost is processor
time, memory, bytes or a count, such as the programs that a node starts. Work that needs a cluster is counted
with stand-ins. The command prints each cost at once, then the exponent and the extrapolation. Each size is a
line of JSON in ``growth.jsonl`` of the folder, with machine, versions, commit and command.

``make bench ARGS="--report FILE"`` writes the table of docs/growth.md from such files.
"""

import argparse
import json
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.case import Line, say
from benchmarks.growth.arithmetic import Point, exponent, extrapolated
from benchmarks.growth.row import Row
from benchmarks.growth.rows import ROWS
from benchmarks.growth.table import STAGE, cost_text, row_points, span_text
from benchmarks.machine import machine

LINES_FILE = "growth.jsonl"
FAILED = 1
"""Exit status if a row failed; 2 is for wrong usage."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parse(given)
    rows = _chosen(options.only)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / LINES_FILE
    common = {
        **machine(torch.device("cpu")),
        "rehearsal": False,
        "command": shlex.join(["python", "-m", "benchmarks.growth", *given]),
        "note": options.note,
    }
    say(f"{len(rows)} rows, about {sum(row.expected_seconds for row in rows) / 60:.0f} minutes")
    failed: list[str] = []
    for row in rows:
        try:
            lines = _run(row, common, file)
        except Exception:
            # One row that fails ends no others.
            traceback.print_exc()
            failed.append(row.name)
            continue
        print("\n".join(_summary(row, lines)), flush=True)
    if failed:
        say(f"failed: {', '.join(failed)}; the errors are above")
        return FAILED
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(row.name for row in ROWS)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=f"rows: {names}")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/growth"), help="folder for the lines (%(default)s)"
    )
    parser.add_argument(
        "--note", default="", help="conditions of the machine, such as: other programs ran beside"
    )
    return parser.parse_args(arguments)


def _chosen(names: Sequence[str]) -> list[Row]:
    """Return the rows of these names, or all rows."""
    known = {row.name: row for row in ROWS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(
            f"error: --only: got {', '.join(unknown)}; allowed are {', '.join(known)}; correct the name"
        )
    return [known[name] for name in names] or list(ROWS)


def _run(row: Row, common: dict[str, Any], file: Path) -> list[Line]:
    """Run a row at its sizes, and append a line for each to the file."""
    say(f"{row.name}: {row.title}, about {row.expected_seconds:.0f} s")
    lines: list[Line] = []
    with TemporaryDirectory(prefix=f"growth-{row.name}-") as folder:
        for size in row.sizes:
            began = time.monotonic()
            costs = dict(row.measure(size, Path(folder)))
            line: Line = {
                "stage": STAGE,
                "size": str(size),
                "contestant": row.name,
                "shape": row.scale.name,
                "verdict": "measured",
                "seconds": round(time.monotonic() - began, 1),
                "figures": costs,
                **common,
                "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            with file.open("a") as stream:
                stream.write(json.dumps(line) + "\n")
            lines.append(line)
            texts = [cost_text(cost, unit) for unit, cost in costs.items()]
            say(f"{row.name}: {size:,} {row.scale.name}: {', '.join(texts)}")
    return lines


def _summary(row: Row, lines: Sequence[Line]) -> list[str]:
    """Return a line for each cost of a row: its exponent, and its extrapolations."""
    found: list[str] = []
    for unit, points in row_points(lines).items():
        parts = [f"{row.name}, {unit}: exponent {exponent(points):.2f}"]
        parts += _extrapolations(row, points)
        found.append("; ".join(parts))
    return found


def _extrapolations(row: Row, points: Sequence[Point]) -> list[str]:
    return [
        f"{target.name} {span_text(extrapolated(points, target.size))}"
        for target in row.scale.targets
        if target.size > points[-1].size
    ]


if __name__ == "__main__":
    sys.exit(main())
