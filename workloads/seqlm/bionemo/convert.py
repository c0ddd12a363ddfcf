"""Convert checkpoints to and from transformers' format with BioNeMo's own converter.

``seqlm convert-bionemo --config RUN.yaml [bionemo.convert=from_transformers ...]``
"""

import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from seqlm.runs.run_file import RunFile
from seqlm.training.checksums import verified, write_sums
from seqlm.training.heartbeat import beat
from seqlm.training.whole_file import move_into_place

from .command import conversion, settings
from .files import CONTEXT, newest_checkpoint
from .installed import require, run_entry_point

TORCHRUN_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""Variables that torchrun sets for its processes."""


class Conversion(NamedTuple):
    """Source and result of a conversion."""

    source: str
    """Checkpoint of BioNeMo, transformers folder or hub id."""
    target: Path
    """Path of the result."""
    to_bionemo: bool
    """Whether the result is a checkpoint of BioNeMo."""


def main(config: RunFile) -> None:
    """Convert in the first process, and keep an existing result.

    Raises:
        RunError: if BioNeMo is not installed, or its converter fails.
        ValueError: if there is nothing to convert.
    """
    beat("converting", slow=True)
    if os.environ.get("RANK", "0") != "0":
        return
    require()
    source, target, to_bionemo = plan(config)
    if target.exists():
        print(f"{target} is there already")
        return
    if to_bionemo and Path(source).is_dir():
        with verified(source):
            pass  # the converter reads the folder itself, after this check
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    _leave_torchrun()
    try:
        run_entry_point("convert", conversion(source, partial, to_bionemo=to_bionemo))
        if not to_bionemo:
            write_sums(partial)
        move_into_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(f"next: model.init_from={target}" if to_bionemo else f"model   {target}")


def _leave_torchrun() -> None:
    """Delete torchrun's variables, because the converter runs in one process without the others."""
    for name in list(os.environ):
        if name in TORCHRUN_VARIABLES or name.startswith("TORCHELASTIC_"):
            del os.environ[name]


def plan(config: RunFile) -> Conversion:
    """Return the conversion that the run file describes.

    Raises:
        ValueError: if there is nothing to convert.
    """
    start = config.model.init_from
    if settings(config).convert == "from_transformers":
        if start is None or (Path(start) / CONTEXT).is_dir():
            raise ValueError(
                f"model.init_from: got {start}; name a transformers folder or hub id to make a checkpoint of"
            )
        name = re.sub(r"[^\w.-]+", "-", start.strip("/.")).strip("-")
        target = Path(config.data.downloads) / f"{name}-nemo"
        return Conversion(start, target, to_bionemo=True)
    if config.task is not None:
        raise ValueError(
            "task: BioNeMo's converter has no fine-tuned heads; it converts pre-trained models"
        )
    newest = newest_checkpoint(config.run_dir)
    if newest is None:
        raise ValueError(
            f"{config.run_dir} has no checkpoint of BioNeMo; make train-bionemo comes first"
        )
    target = config.run_dir / "model"
    return Conversion(str(newest), target, to_bionemo=False)
