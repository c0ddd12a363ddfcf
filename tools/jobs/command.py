"""What the programs that submit a stage have in common: their command line, and what they print."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from tools.command_line import cluster_parser
from tools.images.source_revision import read_revision
from tools.jobs.slurm import code_version
from workloads.run_file import RunFile, load_config
from workloads.stages import STAGES


def stage_parser(description: str, *, nodes: str, image: str, hang_seconds: int) -> argparse.ArgumentParser:
    """A parser with the options that do not depend on who places the jobs.

    Options may stand between the overrides: ``parse_intermixed_args`` reads them.

    Args:
        description: of the program.
        nodes: help for the number of nodes.
        image: help for the image.
        hang_seconds: without an advance, by default.
    """
    parser = cluster_parser(description)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--config", type=Path, help="YAML file of the run; bandwidth has none")
    parser.add_argument("--nodes", help=nodes)
    parser.add_argument("--image", help=image)
    parser.add_argument("--gpus-per-node", type=int, help="all that there are; 0 trains on CPUs")
    parser.add_argument("--folder", help="of runs, data and downloads on the shared file system")
    parser.add_argument(
        "--hang-seconds", type=int, default=hang_seconds, help="without an advance: the job has hung"
    )
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    return parser


def named_run(options: argparse.Namespace) -> tuple[RunFile, str] | None:
    """The run with its overrides, and the text of its file; None for a bandwidth job, which has none.

    Raises:
        ValueError: if there is a file where none belongs, none where one does, or one with mistakes.
    """
    path: Path | None = options.config
    if options.stage == "bandwidth":
        if path:
            raise ValueError(f"--config: got {path}; the bandwidth job runs no training")
        return None
    if not path:
        raise ValueError(f"--config: name the YAML file of the run to {options.stage}")
    return load_config(path, options.overrides), path.read_text()


def code_revision() -> str:
    """Of the code, for checkpoints and reports: the commit, or else the contents' hash."""
    try:
        return read_revision(Path(__file__).parents[2]).tag
    except ValueError:  # no clone, or one that belongs to somebody else
        return code_version.code_hash()


def print_found(found: Mapping[str, str], *, follow: str) -> None:
    """Print a job and where its files are.

    Args:
        found: by name; ``job`` is one of them.
        follow: what to type next.
    """
    for name, value in found.items():
        print(f"{name:8} {value}")
    print(f"next     {follow}")
