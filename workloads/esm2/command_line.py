"""The command line of every stage: ``--config RUN.yaml`` and ``section.field=value``, nothing else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from .config import RunConfig, load_config

USAGE_ERROR = 2


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
    """Run a stage; a mistake of the user's ends with a message and status 2, not with a traceback."""
    try:
        main(parse_config())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR) from error
