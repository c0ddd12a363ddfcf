"""Where a command of inference writes. Standard library alone: what supervises jobs reads it, too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workloads.run_file import RunFile

PARQUET, CSV = ".parquet", ".csv"
FORMATS = {"embed": (PARQUET,), "predict": (CSV, PARQUET), "variants": (CSV, PARQUET)}
"""What each command writes, told by the end of the name."""
DEFAULT_NAMES = {
    "embed": "embeddings.parquet",
    "predict": "predictions.csv",
    "variants": "variants.csv",
}
"""Name of each command's file, unless ``inference.output`` gives one."""


def output_file(config: RunFile, command: str) -> Path:
    """The file that ``inference.output`` names, or the command's default.

    Raises:
        ValueError: for a name that is not one of the command's formats.
    """
    path = Path(config.inference.output or default_folder(config) / DEFAULT_NAMES[command])
    if path.suffix not in FORMATS[command]:
        raise ValueError(
            f"inference.output: got {path}; its name must end in {' or '.join(FORMATS[command])}"
        )
    return path


def default_folder(config: RunFile) -> Path:
    """The folder that holds the model that was given, or its run's; else the folder of this run.

    The latter is for hub ids, and for folders that this user cannot write to.
    """
    model = Path(config.inference.model or config.run_dir / "model")
    holder = model.parent.parent if model.parent.name == "checkpoints" else model.parent
    return holder if os.path.isdir(model) and os.access(holder, os.W_OK) else config.run_dir


def parts_folder(output: Path) -> Path:
    """Of parts that are not joined yet."""
    return output.with_name(output.name + ".parts")


def num_parts(output: Path) -> int:
    """How many are whole and wait to be joined."""
    return sum(1 for _ in parts_folder(output).glob("[0-9]*" + PARQUET))
