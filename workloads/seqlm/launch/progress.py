"""Progress of a job, as a number that only grows, from the files that its stage writes.

A supervisor restarts a job that fails as long as this number grows. Standard library only.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PARTS_SUFFIX = ".parts"
"""Suffix of the folder beside a table with the parts that are not joined yet."""
BIONEMO_CHECKPOINTS = Path("bionemo", "checkpoints")
"""Folder of BioNeMo's checkpoints in the run folder."""
UNFINISHED = "-unfinished"
"""Suffix of the file that NeMo keeps beside a checkpoint until it is complete (NeMo's ModelCheckpoint)."""
_STEP_FOLDER = "step-" + "[0-9]" * 8
_BIONEMO_STEP = re.compile(r"\bstep=(\d+)")


def newest_checkpoint(run_dir: Path, output: str = "") -> int:
    """Return the step of the last complete checkpoint of our trainer; 0 if there is none."""
    found = (run_dir / "checkpoints").glob(_STEP_FOLDER)
    return max((int(path.name.removeprefix("step-")) for path in found), default=0)


def bionemo_step(run_dir: Path, output: str = "") -> int:
    """Return the optimizer steps of BioNeMo's last complete checkpoint; 0 if there is none."""
    return max(map(steps_of, bionemo_checkpoints(run_dir)), default=0)


def bionemo_checkpoints(run_dir: Path) -> Iterator[Path]:
    """Yield BioNeMo's complete checkpoints."""
    for path in (run_dir / BIONEMO_CHECKPOINTS).glob("*"):
        if _BIONEMO_STEP.search(path.name) and path.is_dir() and not unfinished_mark(path).exists():
            yield path


def unfinished_mark(checkpoint: Path) -> Path:
    """Return the file beside a checkpoint of BioNeMo that exists until the checkpoint is complete."""
    return checkpoint.with_name(checkpoint.name + UNFINISHED)


def steps_of(checkpoint: Path) -> int:
    """Return the optimizer steps of a checkpoint of BioNeMo, from its name; NeMo counts from 0.

    Raises:
        ValueError: if the name has no step.
    """
    found = _BIONEMO_STEP.search(checkpoint.name)
    if found is None:
        raise ValueError(f"{checkpoint}: the name has no step=<number>")
    return int(found[1]) + 1


def parts_folder(output: Path) -> Path:
    """Return the folder of the parts of a table that are not joined yet."""
    return output.with_name(output.name + PARTS_SUFFIX)


def complete_parts(run_dir: Path, output: str) -> int:
    """Return the number of complete parts of a table that are not joined yet."""
    return sum(1 for _ in parts_folder(Path(output)).glob("[0-9]*.parquet"))


PROGRESS: Mapping[str, Callable[[Path, str], int]] = {
    "checkpoints": newest_checkpoint,
    "bionemo": bionemo_step,
    "parts": complete_parts,
}
"""Measures of progress, by the name in a stage's record; the arguments are the run folder and the table."""
