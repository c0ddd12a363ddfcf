"""The command ``seqlm``, also ``python -m seqlm``: a subcommand for each thing to do with a model.

Subcommands take a run file and changes to it. make and the launchers of a cluster start the same subcommands.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from seqlm.commands.functions import function_named
from seqlm.commands.kinds import paths_read, report
from seqlm.proteins.serving import command as serving
from seqlm.runs.run_file import RunFile, run_stage
from seqlm.runs.schema import SCHEMA_FILE, json_schema
from seqlm.runs.stages import SUBCOMMANDS
from seqlm.training.command_line import ending_with_reader, one_line_errors, stage_parser
from seqlm.training.whole_file import write_whole


def write_report(arguments: Sequence[str]) -> None:
    """Write the report of a finished or running run again."""
    parser = argparse.ArgumentParser(
        prog="seqlm report",
        description="Write the report of a finished or running run again: ``seqlm report RUN_DIR``.",
    )
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", help="folder of a run: <runs>/<name>"
    )
    options = parser.parse_args(arguments)
    with one_line_errors():
        print(report(options.run_dir))


def list_runs(arguments: Sequence[str]) -> None:
    """List the runs of a folder."""
    from seqlm.commands.run_list import main as list_them

    list_them(arguments)


def compare_runs(arguments: Sequence[str]) -> None:
    """Print what differs between runs."""
    from seqlm.commands.compare_runs import main as compare

    compare(arguments)


def check_files(arguments: Sequence[str]) -> None:
    """Print what would be read of files."""
    from seqlm.proteins.check.command import main as check  # imports pyarrow

    check(arguments)


class _Other(NamedTuple):
    """Subcommand without a run file."""

    summary: str
    """Help text."""
    main: Callable[[Sequence[str]], None]
    """Function of the subcommand's arguments."""


OTHERS: Mapping[str, _Other] = {
    "serve": _Other("answer requests over HTTP with a model", serving.main),
    "report": _Other("write the report of a run again", write_report),
    "runs": _Other("list the runs of a folder, the newest first", list_runs),
    "compare": _Other("print what differs between runs, and their scores", compare_runs),
    "check": _Other("print what would be read of files, and what may be wrong", check_files),
}


def main() -> None:
    """Run a subcommand, or an option of the command itself."""
    with ending_with_reader():
        _run()


def _run() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    arguments = sys.argv[2:]
    if name in SUBCOMMANDS:
        stage = SUBCOMMANDS[name]
        start = partial(function_named(stage.start), *stage.arguments)
        run_stage(start, stage.usage, arguments, name=f"seqlm {name}", paths_read=paths_read)
        return
    if name in OTHERS:
        OTHERS[name].main(arguments)
        return
    parser = _parser()
    options = parser.parse_args()
    if options.write_schema:
        _write_schema()
    elif options.version:
        _print_versions()
    else:
        parser.print_help()


def _write_schema() -> None:
    header = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Run"}
    write_whole(SCHEMA_FILE, json.dumps(header | json_schema(RunFile), indent=1) + "\n")
    print(os.path.relpath(SCHEMA_FILE))


def _print_versions() -> None:
    from seqlm.training.hardware import software_stack  # imports torch

    stack = software_stack()
    width = max(map(len, stack))
    for part, found in stack.items():
        print(f"{part:{width}}  {found or 'not found'}")


def _parser() -> argparse.ArgumentParser:
    """Return the parser of ``--help`` and of the shell's completion."""
    parser = argparse.ArgumentParser(
        prog="seqlm",
        description="Train and use protein and language models. seqlm SUBCOMMAND --help lists its options.",
        epilog='Completion in bash or zsh: eval "$(register-python-argcomplete seqlm)"',
    )
    parser.add_argument("--version", action="store_true", help="print the software stack and stop")
    parser.add_argument(
        "--write-schema", action="store_true", help="write the JSON schema of run files"
    )
    added = parser.add_subparsers(metavar="SUBCOMMAND", title="subcommands")
    for name, stage in SUBCOMMANDS.items():
        stage_parser(stage.usage, added.add_parser(name, help=stage.usage.summary))
    for name, other in OTHERS.items():
        added.add_parser(name, help=other.summary)
    if find_spec("argcomplete"):
        import argcomplete

        argcomplete.autocomplete(parser)
    return parser


if __name__ == "__main__":
    main()
