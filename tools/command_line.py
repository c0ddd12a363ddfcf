"""Options, errors and text tables that the tools' command lines share."""

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from botocore.exceptions import BotoCoreError, ClientError

from config.cluster_files import DEFAULT_CLUSTER_FILE
from seqlm.training.command_line import INTERRUPTED, USAGE_ERROR
from tools.aws_session import explain

Say = Callable[[str], None]
"""Function that receives one line of output."""


def cluster_parser(description: str, *, add_help: bool = True) -> argparse.ArgumentParser:
    """Create a parser with the options ``--cluster`` and ``--profile``, which every tool takes."""
    # For a package, argparse would name the program __main__.py.
    spec = sys.modules["__main__"].__spec__
    prog = f"python -m {spec.name.removesuffix('.__main__')}" if spec else None
    parser = argparse.ArgumentParser(prog=prog, description=description, add_help=add_help)
    parser.add_argument(
        "--cluster",
        type=Path,
        default=DEFAULT_CLUSTER_FILE,
        metavar="FILE",
        help="cluster file (%(default)s)",
    )
    parser.add_argument("--profile", help="profile of the aws command to use")
    return parser


def run_command(main: Callable[[], int]) -> NoReturn:
    """Run a tool and exit with its status.

    For an error that the user can correct, print a message without a traceback, and exit with
    ``USAGE_ERROR``.
    """
    try:
        status = main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        status = USAGE_ERROR
    except (BotoCoreError, ClientError) as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        status = USAGE_ERROR
    except KeyboardInterrupt:
        status = INTERRUPTED
    sys.exit(status)


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
