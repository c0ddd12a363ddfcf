"""Compare runs: what differs in their run files, and their scores (``seqlm compare``)."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from seqlm.runs.kinds import RunKind
from seqlm.training.command_line import one_line_errors
from seqlm.training.config import flat
from seqlm.training.report.page import as_number, as_text
from seqlm.training.report.run_record import RunRecord
from seqlm.training.strict_yaml import read_mapping, shown
from seqlm.training.tracking.run_log import CONFIG_FILE, METRICS_FILE, RESULTS_FILE
from seqlm.training.whole_file import write_whole

from .json_document import json_document, json_error
from .kinds import run_kind
from .run_list import RUNS_FOLDER
from .text_table import text_table

LEAST = 2
MOST = 6
"""Largest number of compared runs: as many as have a colour in the figure."""
TITLE_FIELD = "name"
"""Field of the run file that is not compared, because it is the title of a run's column."""
SAME = "The run files have the same values."


@dataclass(frozen=True)
class ComparedRun:
    """Run that is compared with others."""

    name: str
    kind: RunKind
    fields: Mapping[str, Any]
    """Values of its run file, by ``section.field``."""
    scores: Mapping[str, float]
    """Numbers of its results; without results, those of the last lines of its record."""
    is_finished: bool
    record: RunRecord


@dataclass(frozen=True)
class Comparison:
    """Values by their names, in the order of the runs. None stands for a value that a run lacks."""

    runs: Sequence[ComparedRun]
    fields: Mapping[str, Sequence[Any]]
    """Fields of the run files that differ."""
    scores: Mapping[str, Sequence[float | None]]
    """All scores that any of the runs has."""

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.runs]

    def notes(self) -> list[str]:
        """Return sentences on what the reader has to know about the numbers."""
        found = []
        kinds = {run.kind.name for run in self.runs}
        if len(kinds) > 1:
            listed = ", ".join(sorted(kinds))
            found.append(
                f"The runs are of different kinds ({listed}), whose losses do not compare."
            )
        unfinished = [run.name for run in self.runs if not run.is_finished]
        if unfinished:
            found.append(
                f"Not finished, so the scores are the last of the record: {', '.join(unfinished)}."
            )
        return found


class CompareResult(TypedDict):
    """Result with ``--json``."""

    fields: dict[str, dict[str, Any]]
    """Values of the run files that differ, by field and run."""
    scores: dict[str, dict[str, Any]]
    """All scores, by score and run; None stands for one that a run lacks."""
    notes: list[str]


def main(arguments: Sequence[str]) -> None:
    """Print the comparison, and write its page."""
    options = _parser().parse_args(arguments)
    with (
        one_line_errors(),
        json_error("compare", CompareResult.__annotations__, is_wanted=options.json),
    ):
        if not LEAST <= len(options.runs) <= MOST:
            raise ValueError(
                f"RUN: got {len(options.runs)} runs; from {LEAST} to {MOST} are compared, so name as many"
            )
        found = _compared(_named(options.runs))
        if options.page is not None:
            write_whole(options.page, _page(found))
        if options.json:
            # Standard output is the document alone, so it does not name the page.
            print(json_document("compare", _as_json(found)))
            return
        _print(found)
        if options.page is not None:
            print(options.page)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="seqlm compare",
        description="Print the fields of run files that differ between runs, and the runs' scores.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help=f"folder of a run, or its name in {RUNS_FOLDER}; {LEAST} to {MOST} of them",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write an HTML page, too, with the loss curves"
    )
    return parser


def _named(texts: Sequence[str]) -> list[ComparedRun]:
    """Read runs. Those of one name in several folders are called by their paths.

    Raises:
        ValueError: if there is no such run, a run is named twice, or a record is damaged.
    """
    folders = [_folder(text) for text in texts]
    resolved = [folder.resolve() for folder in folders]
    for number, folder in enumerate(resolved):
        if folder in resolved[:number]:
            raise ValueError(f"RUN: got {shown(texts[number])} twice; name different runs")
    names = [folder.name for folder in resolved]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [_run(folder, name) for folder, name in zip(folders, names, strict=True)]


def _folder(text: str) -> Path:
    """Return the folder of a run."""
    places = [Path(text), RUNS_FOLDER / text]
    folder = next((place for place in places if (place / METRICS_FILE).is_file()), None)
    if folder is None:
        raise ValueError(
            f"RUN: got {shown(text)}, which holds no {METRICS_FILE}; give the folder of a run, or a name "
            "that seqlm runs lists"
        )
    return folder


def _run(folder: Path, name: str) -> ComparedRun:
    """Read a run."""
    config = read_mapping(folder / CONFIG_FILE)
    results = read_mapping(folder / RESULTS_FILE)
    record = RunRecord(folder / METRICS_FILE)
    scores = results or _last_values(record)
    return ComparedRun(
        name=name,
        kind=run_kind(task=config.get("task"), chat=config.get("chat")),
        fields={name: value for name, value in flat(config) if name != TITLE_FIELD},
        scores=_numbers(scores),
        is_finished=bool(results),
        record=record,
    )


def _last_values(record: RunRecord) -> Mapping[str, Any]:
    """Return the values of the last training line and of the last evaluation on the validation split."""
    validation = [line for line in record.last_evaluations if line.get("split") == "validation"]
    return {
        **(record.recent[-1] if record.recent else {}),
        **(validation[-1] if validation else {}),
    }


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    plain = {name: value for name, value in values.items() if name != "environment"}
    return {name: value for name, value in flat(plain) if as_number(value) is not None}


def _compared(runs: Sequence[ComparedRun]) -> Comparison:
    fields = {name: [run.fields.get(name) for run in runs] for run in runs for name in run.fields}
    scores = {name: [run.scores.get(name) for run in runs] for run in runs for name in run.scores}
    different = {
        name: values
        for name, values in fields.items()
        if any(value != values[0] for value in values[1:])
    }
    return Comparison(runs, different, scores)


def _as_json(found: Comparison) -> CompareResult:
    def by_run(values: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
        return {name: dict(zip(found.names, row, strict=True)) for name, row in values.items()}

    return CompareResult(
        fields=by_run(found.fields), scores=by_run(found.scores), notes=found.notes()
    )


def _page(found: Comparison) -> str:
    from seqlm.training.report.comparison import comparison_page  # imports matplotlib

    return comparison_page(
        {run.name: run.record for run in found.runs},
        units={run.name: run.kind.tokens for run in found.runs},
        fields=_rows(found.fields),
        scores=_rows(found.scores),
        notes=found.notes(),
    )


def _rows(values: Mapping[str, Sequence[Any]]) -> list[list[str]]:
    return [[name, *map(as_text, row)] for name, row in values.items()]


def _print(found: Comparison) -> None:
    if found.fields:
        print(text_table(["field", *found.names], _rows(found.fields)))
    else:
        print(SAME)
    print()
    print(text_table(["score", *found.names], _rows(found.scores)))
    for note in found.notes():
        print(note)
