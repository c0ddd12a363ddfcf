"""Write the report of a finished or running run again: ``seqlm report RUN_DIR``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from workloads.families import run_kind
from workloads.training.command_line import one_line_errors
from workloads.training.strict_yaml import read_mapping
from workloads.training.tracking.run_log import CONFIG_FILE


def report(run_dir: Path) -> Path:
    """Write the report of a run of any kind.

    Raises:
        ValueError: if the folder holds no record of a run, or a damaged one.
    """
    from workloads.training.report.run_report import write_report  # imports matplotlib

    config = read_mapping(run_dir / CONFIG_FILE)
    family = (config.get("model") or {}).get("family", "esm2")  # earlier versions wrote none
    kind = run_kind(family, task=config.get("task"), chat=config.get("chat"))
    return write_report(run_dir, kind.report())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="seqlm report", description=__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="folder of a run: <runs>/<name>")
    run_dir: Path = parser.parse_args(arguments).run_dir
    with one_line_errors():
        print(report(run_dir))
