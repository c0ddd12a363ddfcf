"""Lines of a run's record ``metrics.jsonl``, and the removal of its last ones.

A long run has a million lines. A resume therefore reads the file from its end, and stops at the first line of
an earlier step.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from seqlm.training.whole_file import naming

CHECKPOINT = "checkpoint"
"""Event of a complete checkpoint. It has the step of the checkpoint, which later lines may precede."""
WARNING = "warning: "
"""Beginning of the events that stay in the record when their step is repeated."""
BLOCK_BYTES = 1 << 16
"""Bytes that are read at once from the end of the file."""
_MAX_SHOWN_CHARS = 80
"""Length to which a damaged line is cut in a message."""


class RecordLine(NamedTuple):
    """Line of the file that is read from its beginning."""

    number: int
    """Number of the line, from 1."""
    content: bytes
    """Bytes with the line break, if it has one."""


class _Line(NamedTuple):
    """Line of the file that is read from its end."""

    offset: int
    """Position of the first byte."""
    content: bytes
    """Bytes without the line break."""
    is_complete: bool
    """Whether a line break ends it. A kill may cut the last line short."""


class _Kept(NamedTuple):
    """Line that stays in the record."""

    line: _Line
    values: Mapping[str, Any]


def parsed(text: str) -> dict[str, Any] | None:
    """Return the values of a line; None if it is damaged."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    if isinstance(line, dict) and isinstance(line.get("step"), int) and "kind" in line:
        return line
    return None


def damaged(path: Path, number: int, text: str) -> ValueError:
    """Return the error for a damaged line.

    Args:
        path: record.
        number: number of the line, from 1.
        text: content of the line.
    """
    return ValueError(
        f"{path}:{number}: got {text[:_MAX_SHOWN_CHARS]!r}; expected a JSON object with kind and step; "
        "delete that line to continue without it"
    )


def lines_of(path: Path) -> Iterator[RecordLine]:
    """Yield the lines that are not empty.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    with path.open("rb") as stream, naming(path):
        for number, content in enumerate(stream, start=1):
            if content.strip():
                yield RecordLine(number, content)


def values_of(path: Path, line: RecordLine) -> dict[str, Any] | None:
    """Return the values of a line; None for a last line that a kill cut short.

    Raises:
        ValueError: if another line is damaged.
    """
    text = line.content.decode(errors="replace")
    values = parsed(text)
    if values is None and line.content.endswith(b"\n"):
        raise damaged(path, line.number, text.rstrip("\n"))
    return values


def drop_after(path: Path, step: int, *, is_last: bool) -> int:
    """Drop the lines beyond ``step``, and a last line that a kill cut short.

    Warnings stay. Step 0 also loses its evaluations, because a run that starts again scores its start
    again. For the same reason, the last step of a run loses the evaluations that follow its checkpoint.

    The file is truncated in place. Only lines that stand behind a dropped one are written again.

    Args:
        path: record.
        step: step that the run resumes from.
        is_last: whether ``step`` is the last one of the run.

    Returns:
        Number of recorded steps that have to be repeated.

    Raises:
        ValueError: if one of the lines that are read is damaged.
    """
    last_step = step
    candidates: list[_Kept] = []
    with path.open("r+b") as stream, naming(path):
        first_dropped = stream.seek(0, os.SEEK_END)
        for line in _backwards(stream):
            if not line.content.strip():
                continue
            text = line.content.decode(errors="replace")
            values = parsed(text)
            if values is None and line.is_complete:
                raise damaged(path, _number(stream, line), text)
            if values is not None and _is_earlier(values, step):
                break
            if values is not None and (values["step"] <= step or _is_warning(values)):
                candidates.append(_Kept(line, values))
                if line.is_complete:
                    continue
            if values is not None and not _is_warning(values):
                last_step = max(last_step, values["step"])
            first_dropped = line.offset
        kept = _without_repeated_scores(candidates[::-1], step, is_last=is_last)
        offsets = {found.line.offset for found in kept}
        repeated = [found.line.offset for found in candidates if found.line.offset not in offsets]
        first_dropped = min([first_dropped, *repeated])
        behind = [found.line.content for found in kept if found.line.offset >= first_dropped]
        stream.truncate(first_dropped)
        stream.seek(first_dropped)
        stream.write(b"".join(content + b"\n" for content in behind))
        stream.flush()
        os.fsync(stream.fileno())
    return last_step - step


def backwards(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the values of the lines, the last one first, without damaged ones.

    Raises:
        FileNotFoundError: if there is no such file.
    """
    with path.open("rb") as stream, naming(path):
        for line in _backwards(stream):
            values = parsed(line.content.decode(errors="replace"))
            if values is not None:
                yield values


def _is_warning(values: Mapping[str, Any]) -> bool:
    return str(values.get("event", "")).startswith(WARNING)


def _is_earlier(values: Mapping[str, Any], step: int) -> bool:
    """Return whether this line, and with it all lines before, was written before ``step`` was made."""
    return bool(values["step"] < step and values.get("event") != CHECKPOINT)


def _without_repeated_scores(lines: list[_Kept], step: int, *, is_last: bool) -> list[_Kept]:
    """Leave out the evaluations that the resumed run makes again."""
    is_repeated = step == 0
    kept = []
    for found in lines:
        values = found.values
        if is_last and values.get("event") == CHECKPOINT and values["step"] == step:
            is_repeated = True
        if not (is_repeated and values["kind"] == "eval"):
            kept.append(found)
    return kept


def _backwards(stream: BinaryIO) -> Iterator[_Line]:
    """Yield the lines of a file, the last one first."""
    start = stream.seek(0, os.SEEK_END)
    rest = b""
    is_complete = False
    while start > 0:
        size = min(BLOCK_BYTES, start)
        start -= size
        stream.seek(start)
        first, *lines = (stream.read(size) + rest).split(b"\n")
        end = start + len(first) + sum(len(line) + 1 for line in lines)
        for line in reversed(lines):
            yield _Line(end - len(line), line, is_complete)
            end -= len(line) + 1
            is_complete = True
        rest = first
    yield _Line(0, rest, is_complete)


def _number(stream: BinaryIO, line: _Line) -> int:
    """Return the number of a line, from 1."""
    stream.seek(0)
    number = 1
    left = line.offset
    while left > 0:
        block = stream.read(min(BLOCK_BYTES, left))
        number += block.count(b"\n")
        left -= len(block)
    return number
