"""Tables of README.md and docs/ from the lines of acceptance runs, so that no figure is typed by hand.

``<!-- acceptance:versus -->`` and ``<!-- /acceptance:versus -->`` enclose the tables of a stage: one for each
device, such as an H100, an H200 or a type of processor. Other names are those of ``benchmarks/derived.py``,
whose tables combine lines with prices, plans and expectations.
"""

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.case import AUTO_KERNELS, INCOMPLETE, Line, case_id, read_lines
from benchmarks.derived import TABLES

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
NOT_MEASURED = "Not measured yet.\n"
UNSHOWN = {"out of memory": "Out of memory", INCOMPLETE: "Incomplete, not in the table"}
"""Texts that list the cases without a row, by their verdict."""
_MARKED = re.compile(r"(<!-- acceptance:(\w+) -->\n).*?(<!-- /acceptance:\2 -->)", re.DOTALL)


def write_tables(files: Sequence[Path], documents: Iterable[Path] | None = None) -> list[str]:
    """Replace the text between the markers of documents.

    Args:
        files: lines of acceptance runs. They replace lines of the same case in ``benchmarks/results``.
        documents: Markdown files; None is the README and docs.

    Returns:
        The files that changed.

    Raises:
        SystemExit: if one of the files does not exist.
    """
    if missing := [str(file) for file in files if not file.exists()]:
        raise SystemExit(
            f"error: --report: {', '.join(missing)} is missing; expected a file of JSON lines"
        )
    newest = newest_lines(read_lines([*sorted(RESULTS.glob("*.jsonl")), *files]))

    def with_tables(marked: re.Match[str]) -> str:
        begin, stage, end = marked.groups()
        return begin + tables(stage, newest) + end

    if documents is None:
        documents = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
    changed = []
    for document in documents:
        before = document.read_text()
        after = _MARKED.sub(with_tables, before)
        if after != before:
            document.write_text(after)
            changed.append(str(document))
    return changed


def newest_lines(lines: Iterable[Line]) -> list[Line]:
    """Return the last line of each case and device that belongs into tables.

    An incomplete line does not replace a complete one. Lines with other kernels than a run selects are left
    out, because they do not show what users get.
    """
    newest: dict[tuple[str, str], Line] = {}
    for line in lines:
        is_published = line.get("kernels", AUTO_KERNELS) == AUTO_KERNELS
        if line["rehearsal"] or line["verdict"] in ("failed", "skipped") or not is_published:
            continue
        key = (line["device"], case_id(line))
        if line["verdict"] == INCOMPLETE and newest.get(key, line)["verdict"] != INCOMPLETE:
            continue
        newest[key] = line
    return list(newest.values())


def tables(stage: str, lines: Sequence[Line]) -> str:
    """Return a stage's tables in Markdown, one per device, or the one table of another name."""
    if stage in TABLES:
        table = TABLES[stage]([line for line in lines if line["verdict"] != INCOMPLETE])
        return f"{_table(table.rows)}\n{table.note}\n" if table.rows else NOT_MEASURED
    mine = [line for line in lines if line["stage"] == stage]
    parts: list[str] = []
    for device in dict.fromkeys(line["device"] for line in mine):
        here = [line for line in mine if line["device"] == device]
        measured = [line for line in here if line["verdict"] not in UNSHOWN]
        rows: list[dict[str, str]] = []
        if measured:
            rows_of = getattr(import_module(f"benchmarks.stages.{stage}"), "rows", _rows)
            rows = rows_of(measured)
        parts.append(f"{_heading(here)}\n\n{_table(rows)}{_left_out(here)}")
    return "\n".join(parts) or NOT_MEASURED


def _heading(lines: Sequence[Line]) -> str:
    """Return the device, the versions and the commits of the lines."""
    line = lines[-1]
    versions = line["versions"]
    commits = ", ".join(dict.fromkeys(line["commit"][:7] for line in lines))
    name = line["device"]
    if versions.get("cuda"):
        name += f" (CUDA {versions['cuda']})"
    return (
        f"**{name}**, torch {versions['torch']}, transformers {versions['transformers']}, Python "
        f"{versions['python']}; commit {commits}:"
    )


def _table(rows: Sequence[dict[str, str]]) -> str:
    if not rows:
        return ""
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    table = [headings, ["---"] * len(headings)]
    for row in rows:
        table.append([row.get(name, "") for name in headings])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in table)


def _left_out(lines: Sequence[Line]) -> str:
    """Return a sentence for each verdict whose cases have no row."""
    sentences: list[str] = []
    for verdict, text in UNSHOWN.items():
        cases = [f"`{case_id(line)}`" for line in lines if line["verdict"] == verdict]
        if cases:
            sentences.append(f"\n{text}: {', '.join(cases)}.\n")
    return "".join(sentences)


def _rows(lines: Sequence[Line]) -> list[dict[str, str]]:
    """Return one row per case with its scalar figures."""
    rows: list[dict[str, str]] = []
    for line in lines:
        row = {"model": line["size"], "case": f"{line['contestant']} {line['shape']}"}
        for name, value in line["figures"].items():
            heading = name.replace("_", " ")
            if isinstance(value, float):
                row[heading] = f"{value:,.4g}"
            elif isinstance(value, int | str):
                row[heading] = str(value)
        row["verdict"] = line["verdict"]
        rows.append(row)
    return rows
