"""Where a command of inference writes. Standard library alone: what supervises jobs reads it, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..config import RunConfig

PARQUET, CSV = ".parquet", ".csv"
FORMATS = {"embed": (PARQUET,), "predict": (CSV, PARQUET), "variants": (CSV, PARQUET)}
"""What each command writes, told by the end of the name."""
DEFAULT_NAMES = {
    "embed": "embeddings.parquet",
    "predict": "predictions.csv",
    "variants": "variants.csv",
}
"""In the run's folder."""


def output_file(config: RunConfig, command: str) -> Path:
    """What ``inference.output`` names, or the command's default.

    Raises:
        ValueError: for a name that is not one of the command's formats.
    """
    path = Path(config.inference.output or config.run_dir / DEFAULT_NAMES[command])
    if path.suffix not in FORMATS[command]:
        raise ValueError(
            f"inference.output: got {path}; its name must end in {' or '.join(FORMATS[command])}"
        )
    return path


def parts_folder(output: Path) -> Path:
    """Of parts that are not joined yet."""
    return output.with_name(output.name + ".parts")


def num_parts(output: Path) -> int:
    """How many are whole and wait to be joined."""
    return sum(1 for _ in parts_folder(output).glob("[0-9]*" + PARQUET))
