"""The command line of every stage: ``--config RUN.yaml`` and ``section.field=value``, nothing else."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from .config import RunConfig, load_config

USAGE_ERROR = 2
ERROR_FILE = "ESM2_ERROR_FILE"
"""Environment variable: where the processes of a run leave the message that they end with, so that who
started them can print it once."""


class RunError(RuntimeError):
    """A run cannot go on, for a reason that the message tells whoever started it.

    Raised on every process of the run alike.
    """


def parse_config(arguments: Sequence[str] | None = None) -> RunConfig:
    """Read the configuration that the command line names.

    Raises:
        ValueError: if the file or an override is wrong, listing every problem.
    """
    parser = argparse.ArgumentParser(description="One stage of an ESM-2 run.")
    parser.add_argument("--config", required=True, help="YAML file of the run")
    parser.add_argument(
        "overrides", nargs="*", metavar="section.field=value", help="changes to single fields"
    )
    parsed = parser.parse_args(arguments)
    return load_config(parsed.config, parsed.overrides)


def run_command(main: Callable[[RunConfig], None]) -> None:
    """Run a stage; an error with a message for the user ends with it and status 2, not with a traceback."""
    try:
        with one_line_if_missing():
            main(parse_config())
    except (ValueError, RunError) as error:
        tell(f"error: {error}")
        _leave(USAGE_ERROR)
    except Exception as error:
        traceback.print_exc()
        _tell_first(f"{type(error).__name__}: {error}")
        _leave(1)


def require(package: str) -> None:
    """Raise ModuleNotFoundError if a package is not installed, before a run and not at the end of it."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


@contextlib.contextmanager
def one_line_if_missing() -> Iterator[None]:
    """End with one line and status 1 if a package is missing that this stage needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or importlib.util.find_spec(package) is not None:
            raise  # a fault of this project, or of a package that is there
        name = {"sklearn": "scikit-learn"}.get(package, package)
        tell(f"error: the package {name} is missing; install it (pip install {name}) and try again")
        _leave(1)


def _leave(status: int) -> NoReturn:
    """Exit; one of several processes at once: background threads may wait for the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        os._exit(status)
    raise SystemExit(status)


def tell(message: str) -> None:
    """Print the message that a process ends with, or leave it to who started the processes."""
    path = os.environ.get(ERROR_FILE)
    if path:
        Path(path).write_text(message)
    else:
        print(message, file=sys.stderr)


def _tell_first(message: str) -> None:
    """For who started the processes, unless another one has told: what fails next fails because of it."""
    if path := os.environ.get(ERROR_FILE):
        with contextlib.suppress(FileExistsError), Path(path).open("x") as file:
            file.write(message)
