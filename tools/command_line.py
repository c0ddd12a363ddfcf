"""Options, errors and text tables that the tools' command lines share."""

import argparse
import math
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from botocore.exceptions import BotoCoreError, ClientError

from config.cluster_files import DEFAULT_CLUSTER_FILE
from seqlm.training.command_line import INTERRUPTED, USAGE_ERROR, ending_with_reader
from tools.aws_session import explain
from tools.json_output import OPTION, command_of, is_recording, recording

Say = Callable[[str], None]
"""Function that receives one line of output."""
YES = "yes"
DEFECT = 1
"""Exit status of Python after an exception that is not a message for users."""


class CommandParser(argparse.ArgumentParser):
    """Parser whose message about wrong arguments gets into the JSON of ``--json``."""

    def error(self, message: str) -> NoReturn:
        if is_recording():
            raise ValueError(f"{message}; {self.prog} --help lists the arguments")
        super().error(message)


def cluster_parser(description: str, *, add_help: bool = True) -> CommandParser:
    """Create a parser with the options ``--cluster`` and ``--profile``, which every tool takes."""
    # For a package, argparse would name the program __main__.py.
    name = _started_module()
    prog = f"python -m {name}" if name else None
    parser = CommandParser(prog=prog, description=description, add_help=add_help)
    parser.add_argument(
        "--cluster",
        type=Path,
        default=DEFAULT_CLUSTER_FILE,
        metavar="FILE",
        help="cluster file (%(default)s)",
    )
    parser.add_argument("--profile", help="profile of the aws command to use")
    return parser


def minutes(text: str) -> float:
    """Read a number of minutes from the command line; 0 does not wait."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    # float also reads nan and inf.
    if not math.isfinite(number) or number < 0:
        raise argparse.ArgumentTypeError(f"got {text}; expected a number from 0, such as 10")
    return number


def add_yes_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that ``confirm`` reads."""
    parser.add_argument("--yes", action="store_true", help="confirm without a prompt")


def confirm(action: str, is_confirmed: bool) -> None:
    """Raise ValueError unless the action is confirmed as an option, or typed."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise ValueError("there is no terminal to confirm in; use a terminal, or --yes")
    given = input(f"\nType {YES} to {action}: ").strip()
    if given != YES:
        raise ValueError(f"got '{given}', expected {YES}; nothing was changed")


def _started_module() -> str:
    """Return the module or package that Python was started with; empty if it was started with another."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else ""


@dataclass(frozen=True)
class _End:
    """End of a command."""

    status: int
    error: str | None = None
    """Message about an error that the user can correct."""


def run_command(main: Callable[[], int]) -> NoReturn:
    """Run a tool and exit with its status.

    For an error that the user can correct, print a message without a traceback, and exit with
    ``USAGE_ERROR``. With ``--json``, print the result as one document on standard output.
    """
    with ending_with_reader():
        sys.exit(_status_of(main))


def _status_of(main: Callable[[], int]) -> int:
    """Run a tool, print its result as JSON if its arguments say so, and return its exit status."""
    words = sys.argv[1:]
    module = main.__module__ if main.__module__ != "__main__" else _started_module()
    command = command_of(module.removesuffix(".__main__"), words) if OPTION in words else None
    if command is None:
        end = _end_of(main)
    else:
        with recording(command) as document:
            try:
                end = _end_of(main)
            except Exception as error:
                traceback.print_exc()
                end = _End(DEFECT, f"defect of this program: {type(error).__name__}: {error}")
        print(document.as_text(exit_status=end.status, error=end.error), flush=True)
    return end.status


def _end_of(main: Callable[[], int]) -> _End:
    """Run a tool, and print the message about an error that the user can correct."""
    try:
        return _End(main())
    except ValueError as error:
        message = str(error)
    except (BotoCoreError, ClientError) as error:
        message = explain(error)
    except KeyboardInterrupt:
        return _End(INTERRUPTED)
    print(f"error: {message}", file=sys.stderr)
    return _End(USAGE_ERROR, message)


def tell_lines(command: Sequence[str], say: Say, *, folder: Path | None = None) -> int:
    """Run a program, pass on each line of its output at once, and return the exit status."""
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout
        for line in process.stdout:
            say(line.rstrip("\n"))
    return process.returncode


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with columns as wide as their widest cell, two spaces apart."""
    all_rows = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*all_rows, strict=True)]
    lines = []
    for row in all_rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
