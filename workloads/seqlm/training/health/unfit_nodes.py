"""Nodes that a run reports as unfit, for the supervisor of its job.

The run writes a file into its folder, and the supervisor reads it. Standard library only, because the node's
own Python reads it, too.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from seqlm.training.whole_file import write_whole

UNFIT_FILE = "unfit-nodes.json"
"""File in the folder of a run: reasons by the names of nodes."""


def report_unfit(run_dir: Path, reasons: Mapping[str, str]) -> None:
    """Report nodes as unfit, beside those that are reported already.

    Args:
        run_dir: folder of the run.
        reasons: reasons by the names of the nodes.
    """
    write_whole(run_dir / UNFIT_FILE, json.dumps({**unfit_nodes(run_dir), **reasons}) + "\n")


def unfit_nodes(run_dir: Path) -> dict[str, str]:
    """Return the nodes that are reported as unfit, with the reasons."""
    try:
        found: dict[str, str] = json.loads((run_dir / UNFIT_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def forget_unfit(run_dir: Path) -> None:
    """Forget all reports, which were about the nodes of an earlier attempt."""
    (run_dir / UNFIT_FILE).unlink(missing_ok=True)
