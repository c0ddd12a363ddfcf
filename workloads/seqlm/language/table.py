"""Read questions and answers from JSON, JSON Lines, CSV, TSV or Parquet, also of the Hugging Face Hub."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqlm.runs.run_file import RunFile
from seqlm.training.data import table_rows
from seqlm.training.data.limits import Limits
from seqlm.training.data.remotes import FetchError
from seqlm.training.data.source_file import open_text
from seqlm.training.data.table_forms import TABLE_SUFFIXES
from seqlm.training.data.table_rows import Problems, TableUse
from seqlm.training.data.transfer import SourceKind, fetch, local_files
from seqlm.training.strict_yaml import shown_first

from .config import ChatConfig

_JSON_SUFFIXES = (".json", ".json.gz")
_LINES_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson")
QUESTIONS = SourceKind(
    name="table",
    suffixes=(*_JSON_SUFFIXES, *_LINES_SUFFIXES, *TABLE_SUFFIXES),
    sample=Path(__file__).parent / "sample" / "questions.jsonl.gz",
    addresses={},
)
COLUMN_FIELDS = "chat.question_column, chat.answer_column and chat.reasoning_column"
"""Fields of the run file that name the columns of a table."""
TABLE_USE = TableUse(COLUMN_FIELDS, f"JSON ({', '.join([*_JSON_SUFFIXES, *_LINES_SUFFIXES])})")
MAX_ARRAY_CHARS = 1 << 30
"""Largest JSON file, which is read into memory as a whole. JSON Lines files have no limit."""

_HUB_FILE = re.compile(
    r"hf://datasets/(?P<id>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?/(?P<file>.+)"
)

Cells = dict[str, str | None]
"""Text of a row by column; None if it is missing."""


@dataclass(frozen=True)
class Conversation:
    """Row of a table."""

    question: str
    reasoning: str
    """Text before the answer; empty without ``chat.reasoning_column``."""
    answer: str


def table_files(location: str, downloads: Path) -> list[Path]:
    """Return the local files of an entry of ``chat.table``.

    A file of the hub, ``hf://datasets/<owner>/<name>@<revision>/<file>``, is downloaded.

    Raises:
        FetchError: (a ValueError) if it cannot be downloaded.
    """
    if not location.startswith("hf://"):
        return fetch(location, downloads, QUESTIONS)
    from huggingface_hub import hf_hub_download  # takes a second to import

    found = _HUB_FILE.fullmatch(location)
    if found is None:
        raise FetchError(
            f"chat.table: got {location}; a file of the hub is hf://datasets/<owner>/<name>@<revision>/<file>"
        )
    repository = found["id"]
    revision = found["revision"]
    folder = hub_folder(downloads, f"datasets/{repository}", revision)
    with from_hub(f"chat.table: {location}"):
        local = hf_hub_download(
            repository, found["file"], repo_type="dataset", revision=revision, local_dir=folder
        )
        return [Path(local)]


def hub_folder(downloads: Path, repository: str, revision: str | None) -> Path:
    """Return the folder of a revision, so that no revision overwrites another."""
    return downloads / "hub" / f"{repository.replace('/', '--')}@{revision or 'main'}"


@contextmanager
def from_hub(what: str) -> Iterator[None]:
    """Convert errors of the hub's client to FetchError.

    Args:
        what: field of the run file and its value.
    """
    try:
        yield
    except (
        Exception
    ) as error:  # the HTTP library of the hub's client, and so its errors, may change
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise FetchError(
            f"{what} could not be had from the hub: {reason}. Check the name, the network and, for a model "
            "with a licence to accept, HF_TOKEN (on a cluster the file huggingface/token: docs/causal-lm.md);"
            " then start the same command again, which resumes the download"
        ) from error


def paths_read(config: RunFile) -> list[str]:
    """Return the files and folders that the preparation reads, without downloads and bundled files."""
    assert config.chat is not None, "a run without chat: has no questions"
    return local_files(config.chat.table, QUESTIONS)


def read_conversations(files: Sequence[Path], chat: ChatConfig) -> list[Conversation]:
    """Read all rows of the tables, in their order.

    Raises:
        ValueError: if a file cannot be read, a column is missing, or rows lack a question or an answer.
    """
    problems = Problems()
    columns = [chat.question_column, chat.answer_column]
    if chat.reasoning_column is not None:
        columns.insert(1, chat.reasoning_column)
    conversations = []
    for path in files:
        for where, cells in read_rows(path, columns, problems):
            absent = [name for name in columns if not cells[name]]
            if absent:
                problems.add(where, f"no text in {', '.join(map(repr, absent))}")
                continue
            reasoning = "" if chat.reasoning_column is None else cells[chat.reasoning_column] or ""
            conversations.append(
                Conversation(
                    question=cells[chat.question_column] or "",
                    reasoning=reasoning,
                    answer=cells[chat.answer_column] or "",
                )
            )
    problems.raise_if_any(", ".join(path.name for path in files))
    if not conversations:
        raise ValueError(f"{', '.join(map(str, files))}: no question in there; give at least one")
    return conversations


def read_rows(
    path: Path, columns: Sequence[str], problems: Problems | None = None
) -> Iterator[tuple[str, Cells]]:
    """Iterate over the rows of a file, with the position of each one for messages.

    Args:
        path: file.
        columns: columns to read.
        problems: record of the mistakes in rows, which are left out.
    """
    problems = problems or Problems()
    name = path.name.lower()
    if name.endswith(_LINES_SUFFIXES):
        rows = _lines(path, problems)
    elif name.endswith(_JSON_SUFFIXES):
        rows = _array(path)
    else:
        for where, cells in table_rows.read_rows(path, columns, problems, TABLE_USE):
            yield (
                where,
                {column: cell if isinstance(cell, str) else None for column, cell in cells.items()},
            )
        return
    for number, (where, row) in enumerate(rows):
        if not isinstance(row, dict):
            problems.add(
                where, f"got {str(row)[:40]!r}; expected an object with {', '.join(columns)}"
            )
            continue
        absent = [column for column in columns if column not in row]
        if absent and number == 0:
            raise ValueError(
                f"{path} has no column {absent[0]!r}; it has {shown_first(row)}. Name the table's "
                f"own columns in {COLUMN_FIELDS}"
            )
        texts = {column: row.get(column) for column in columns}
        wrong = [
            column
            for column, text in texts.items()
            if text is not None and not isinstance(text, str)
        ]
        if wrong:
            problems.add(
                where, f"{wrong[0]!r} is {str(texts[wrong[0]])[:40]}; expected text in quotes"
            )
            continue
        yield where, {column: (text or "").strip() or None for column, text in texts.items()}


def _array(path: Path) -> Iterator[tuple[str, Any]]:
    """Iterate over the items of a JSON file, with their positions."""
    with open_text(
        path, "\n", max_line_bytes=None
    ) as stream:  # a string of JSON may contain U+2028
        text = stream.read(MAX_ARRAY_CHARS + 1)
    if len(text) > MAX_ARRAY_CHARS:
        raise ValueError(
            f"{path} has more than {MAX_ARRAY_CHARS} characters; give JSON Lines (.jsonl), one object a line"
        )
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not JSON ({error}); one object a line is JSON Lines, whose files are called .jsonl"
        ) from None
    if not isinstance(rows, list):
        raise ValueError(
            f"{path}: got {type(rows).__name__}; expected a list of objects: [{{...}}, ...]"
        )
    for number, row in enumerate(rows, start=1):
        yield f"{path} row {number}", row


def _lines(path: Path, problems: Problems) -> Iterator[tuple[str, Any]]:
    """Iterate over the lines of a JSON Lines file, with their positions."""
    limit = Limits.for_workers(1).record_bytes
    with open_text(path, "\n") as stream:  # a string of JSON may contain U+2028
        for number, line in enumerate(iter(lambda: stream.readline(limit + 1), ""), start=1):
            if len(line) > limit:
                raise ValueError(
                    f"{path}:{number}: a line of more than {limit} characters; divide it"
                )
            if not line.strip():
                continue
            try:
                yield f"{path}:{number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                problems.add(f"{path}:{number}", f"not JSON ({error})")
