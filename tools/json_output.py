"""JSON form of a command's result: ``--json`` prints one document, and the text for people goes to stderr.

Commands call ``publish`` with what they have found. Without ``--json`` it does nothing. ``json_forms.py`` has
the fields of each command.
"""

import argparse
import io
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from seqlm.commands.json_document import json_document
from tools.json_forms import COMMANDS, top_level

OPTION = "--json"
LAST_LINES = 200
"""Most lines of text in the document of a command whose result is text, such as a log."""
_STDOUT = 1
_STDERR = 2


@dataclass
class Document:
    """Result of a command that runs with ``--json``."""

    command: str
    """Name of the command, a key of ``COMMANDS``."""
    result: dict[str, Any]
    """Values of the command's fields; null as long as the command has not found them."""
    error: str | None = None
    """Message about an error that the command has printed itself."""
    printed: "_Printed" = field(default_factory=lambda: _Printed())

    def as_text(self, *, exit_status: int, error: str | None) -> str:
        """Return the document as JSON text.

        Args:
            exit_status: exit status of the command.
            error: message about the error that ended the command, in place of one that it has printed.
        """
        message = self.error if error is None else error
        return json_document(self.command, self.result, exit_status=exit_status, error=message)


class _Printed(io.TextIOBase):
    """Stream that passes text on to standard error, and keeps the last lines."""

    def __init__(self) -> None:
        self._whole: deque[str] = deque(maxlen=LAST_LINES)
        self._begun = ""

    def write(self, text: str) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        self._whole.extend(whole)
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def lines(self) -> list[str]:
        return [*self._whole, *([self._begun] if self._begun else [])]


_DOCUMENT: ContextVar[Document | None] = ContextVar("document", default=None)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``, which ``run_command`` has read already."""
    parser.add_argument(
        OPTION, action=_JsonAction, nargs=0, help="print the result as JSON (docs/json.md)"
    )


class _JsonAction(argparse.Action):
    """Refusal of abbreviations, which ``run_command`` does not see."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        if OPTION not in sys.argv:
            parser.error(f"{OPTION} cannot be abbreviated; write {OPTION}")


def is_recording() -> bool:
    """Return whether the command runs with ``--json``."""
    return _DOCUMENT.get() is not None


def publish(**fields: Any) -> None:
    """Set fields of the document; without ``--json``, do nothing.

    Raises:
        KeyError: if the table has no such field for the command.
    """
    document = _DOCUMENT.get()
    if document is None:
        return
    for name in fields:
        if name not in document.result:
            raise KeyError(f"tools/json_forms.py has no field {name} of {document.command}")
    document.result.update(fields)


def publish_error(message: str) -> None:
    """Set the error of the document if the command prints it itself; without ``--json``, do nothing."""
    document = _DOCUMENT.get()
    if document is not None:
        document.error = message


def publish_lines(name: str) -> None:
    """Set a field to the last lines that the command has printed; without ``--json``, do nothing."""
    document = _DOCUMENT.get()
    if document is not None:
        publish(**{name: document.printed.lines()})


def command_of(module: str, words: Sequence[str]) -> str | None:
    """Return the command that runs, a key of ``COMMANDS``.

    Args:
        module: name of the module that runs.
        words: arguments of the module.

    Returns: None for a module without JSON, and for arguments without its subcommand.
    """
    commands = {found.word: name for name, found in COMMANDS.items() if found.module == module}
    return next((commands[word] for word in words if word in commands), commands.get(""))


@contextmanager
def recording(command: str) -> Iterator[Document]:
    """Record what the command publishes, and send its other output, and that of its programs, to stderr."""
    document = Document(command, dict.fromkeys(top_level(COMMANDS[command].fields)))
    token = _DOCUMENT.set(document)
    sys.stdout.flush()
    stdout = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        with redirect_stdout(document.printed):
            yield document
    finally:
        sys.stderr.flush()
        os.dup2(stdout, _STDOUT)
        os.close(stdout)
        _DOCUMENT.reset(token)


def paths_of(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the path of each leaf of a result, such as ``findings[].level``."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from paths_of(inner, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(value, list) and value:
        for inner in value:
            yield from paths_of(inner, f"{prefix}[]")
    else:
        yield prefix
