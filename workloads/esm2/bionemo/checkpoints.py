"""What BioNeMo leaves of a run, in ``<run>/bionemo/checkpoints``. Standard library alone."""

from __future__ import annotations

import re
from pathlib import Path

EXPERIMENT = "bionemo"
"""Folder below the run's."""
_UNFINISHED = "-unfinished"
"""Suffix of the file that NeMo keeps beside a checkpoint until it is whole (NeMo's ModelCheckpoint)."""
_STEP = re.compile(r"\bstep=(\d+)")


def checkpoints_folder(run_dir: Path) -> Path:
    return run_dir / EXPERIMENT / "checkpoints"


def newest_checkpoint(run_dir: Path) -> Path | None:
    """The whole checkpoint of the last step; None if there is none."""
    found = []
    folder = checkpoints_folder(run_dir)
    for path in folder.iterdir() if folder.is_dir() else ():
        step = _STEP.search(path.name)
        if step and path.is_dir() and not path.with_name(path.name + _UNFINISHED).exists():
            found.append((int(step[1]), path.name, path))
    return max(found)[2] if found else None


def checkpoint_step(run_dir: Path) -> int:
    """How far the newest whole checkpoint has come; 0 without."""
    path = newest_checkpoint(run_dir)
    step = _STEP.search(path.name) if path else None
    return int(step[1]) if step else 0
