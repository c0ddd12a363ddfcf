"""List the runs of a folder, the newest first (``seqlm runs``).

A folder may have thousands of runs, so little is read of each. The order comes from the times of the records.
Only filters read something of every run: the start of its configuration, or the end of its record.
"""

import argparse
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from seqlm.runs.kinds import RunKind
from seqlm.training.command_line import one_line_errors
from seqlm.training.data.locks import is_held
from seqlm.training.report.page import as_number, as_text, first_number
from seqlm.training.strict_yaml import read_mapping, shown
from seqlm.training.tracking.record_file import backwards
from seqlm.training.tracking.run_log import CONFIG_FILE, METRICS_FILE, RESULTS_FILE, STOPPED

from .json_document import json_document, json_error
from .kinds import RUN_KINDS, run_kind
from .text_table import ABSENT, text_table

RUNS_FOLDER = Path("runs")
"""Default folder of runs, as in run files."""
MAX_LISTED = 50
"""Runs that are listed without ``--all``."""
MAX_CONFIG_BYTES = 1 << 16
"""Bytes of a configuration that are read for its kind. A whole one has about 4,000."""
MAX_LAST_LINES = 200
"""Lines at the end of a record in which the last evaluation is sought."""
State = Literal["running", "finished", "stopped", "failed"]
STATES: tuple[State, ...] = get_args(State)
_SECTION = re.compile(r"^(task|chat):(.*)$", re.MULTILINE)
"""Line of a configuration that begins the section of a kind of runs."""
_EMPTY = {"null", "{}", "~"}
"""Values of such a line if the run has no such section."""


@dataclass(frozen=True)
class ListedRun:
    """Run in the list."""

    name: str
    """Name of its folder."""
    kind: str
    state: State
    step: int
    """Last step in its record."""
    score_name: str | None
    """Key score of its kind; None before the first evaluation."""
    score: float | None
    started: str
    """UTC time of its last start, in the form of ISO 8601."""
    seconds: float | None
    """Time of all its starts: as its results say, or else until the last logged step."""


class ListResult(TypedDict):
    """Result with ``--json``."""

    runs: list[dict[str, Any]]
    """Listed runs, each with the fields of ``ListedRun``."""
    num_matching: int
    """Number of runs that the options select."""
    num_runs: int
    """Number of runs in the folder."""


def main(arguments: Sequence[str]) -> None:
    """Print the list."""
    options = _parser().parse_args(arguments)
    with one_line_errors(), json_error("runs", ListResult.__annotations__, is_wanted=options.json):
        folders = _run_folders(options.folder)
        kept = list(_filtered(folders, options))
        listed = [_listed(path) for path in islice(kept, None if options.all else MAX_LISTED)]
        if options.json:
            result = ListResult(
                runs=[asdict(run) for run in listed],
                num_matching=len(kept),
                num_runs=len(folders),
            )
            print(json_document("runs", result))
            return
        if listed:
            print(text_table(*_table(listed)))
        print(_count_line(len(listed), len(kept), len(folders), options.folder))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="seqlm runs",
        description=f"List the runs of a folder, the newest {MAX_LISTED} first.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=RUNS_FOLDER,
        metavar="FOLDER",
        help=f"folder of runs; default {RUNS_FOLDER}",
    )
    parser.add_argument("--name", metavar="PATTERN", help="only names like 'esm2_*'")
    parser.add_argument("--kind", choices=[kind.name for kind in RUN_KINDS], help="only this kind")
    parser.add_argument("--state", choices=STATES, help="only runs in this state")
    parser.add_argument("--all", action="store_true", help="list all, not only the newest")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run_folders(folder: Path) -> list[Path]:
    """Return the folders of runs, the one that was last written to first.

    Raises:
        ValueError: if there is no such folder.
    """
    times: dict[str, float] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    times[entry.name] = os.stat(f"{entry.path}/{METRICS_FILE}").st_mtime
                except (FileNotFoundError, NotADirectoryError):
                    continue
    except OSError as error:
        raise ValueError(
            f"folder: got {shown(str(folder))} ({error.strerror}); give the folder of runs, which a run file "
            f"names in runs: (default {RUNS_FOLDER})"
        ) from None
    return [folder / name for name in sorted(times, key=lambda name: (-times[name], name))]


def _filtered(folders: Iterable[Path], options: argparse.Namespace) -> Iterator[Path]:
    """Yield the runs that the options select. Each filter reads what it needs."""
    for path in folders:
        if options.name is not None and not fnmatchcase(path.name, options.name):
            continue
        if options.kind is not None and _kind(path).name != options.kind:
            continue
        if options.state is not None and _state(path) != options.state:
            continue
        yield path


def _kind(path: Path) -> RunKind:
    """Return the kind of a run, from the lines of its configuration: parsing YAML takes longer."""
    try:
        with (path / CONFIG_FILE).open("rb") as stream:
            text = stream.read(MAX_CONFIG_BYTES).decode(errors="replace")
    except OSError:
        text = ""
    sections = {name for name, value in _SECTION.findall(text) if value.strip() not in _EMPTY}
    return run_kind(task="task" in sections, chat="chat" in sections)


def _state(path: Path) -> State:
    if is_held(path / METRICS_FILE):
        return "running"
    # A damaged file has no results; the report and the comparison judge by the results, too.
    if read_mapping(path / RESULTS_FILE):
        return "finished"
    last = next(backwards(path / METRICS_FILE), {})
    return "stopped" if str(last.get("event", "")).startswith(STOPPED) else "failed"


def _listed(path: Path) -> ListedRun:
    kind = _kind(path)
    results = read_mapping(path / RESULTS_FILE)
    lines = list(islice(backwards(path / METRICS_FILE), MAX_LAST_LINES))
    validation = _first(lines, kind="eval", split="validation")
    score_name = None
    score = None
    for name in kind.key_scores:
        score = first_number(results.get(name), validation.get(name))
        if score is not None:
            score_name = name
            break
    return ListedRun(
        name=path.name,
        kind=kind.name,
        state=_state(path),
        step=lines[0]["step"] if lines else 0,
        score_name=score_name,
        score=score,
        started=_started(path),
        seconds=_seconds(results, _first(lines, kind="train")),
    )


def _first(lines: Iterable[Mapping[str, Any]], **wanted: str) -> Mapping[str, Any]:
    """Return the first line with these values; empty if there is none."""
    for line in lines:
        if all(line.get(name) == value for name, value in wanted.items()):
            return line
    return {}


def _started(path: Path) -> str:
    """Return the time of the last start, which writes the configuration."""
    file = path / CONFIG_FILE
    written = (file if file.exists() else path / METRICS_FILE).stat().st_mtime
    return datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds")


def _seconds(results: Mapping[str, Any], last: Mapping[str, Any]) -> float | None:
    parts = [
        as_number(results.get(name)) for name in ("start_seconds", "train_runtime", "end_seconds")
    ]
    known = [part for part in parts if part is not None]
    return sum(known) if known else as_number(last.get("seconds"))


def _table(listed: Sequence[ListedRun]) -> tuple[list[str], list[list[str]]]:
    titles = ["name", "kind", "state", "step", "score", "last start (UTC)", "duration"]
    rows = []
    for run in listed:
        score = ABSENT if run.score is None else f"{run.score_name} {as_text(run.score)}"
        started = run.started[:16].replace("T", " ")
        duration = ABSENT if run.seconds is None else str(timedelta(seconds=round(run.seconds)))
        rows.append([run.name, run.kind, run.state, f"{run.step:,}", score, started, duration])
    return titles, rows


def _count_line(num_listed: int, num_kept: int, num_runs: int, folder: Path) -> str:
    if not num_runs:
        return f"no runs in {folder}; a run begins with make train-ddp, or seqlm train"
    selected = f"{num_kept:,} of {num_runs:,}" if num_kept < num_runs else f"{num_runs:,}"
    noun = "run" if num_runs == 1 else "runs"
    line = f"{selected} {noun} in {folder}"
    if num_listed < num_kept:
        line += f"; the newest {num_listed:,} are listed, --all lists all"
    return line
