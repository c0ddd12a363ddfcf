"""Checkpoints to and from transformers' format, by BioNeMo's own converter.

``seqlm convert-bionemo --config RUN.yaml [bionemo.convert=from_transformers ...]``
"""

import os
import re
import shutil
from pathlib import Path

from seqlm.runs.run_file import RunFile
from seqlm.training.checksums import verified, write_sums
from seqlm.training.heartbeat import beat

from .command import conversion, settings
from .files import CONTEXT, newest_checkpoint
from .installed import require, run_entry_point

_OF_TORCHRUN = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)


def main(config: RunFile) -> None:
    """Convert in one of the processes, and keep an existing result.

    Raises:
        RunError: if BioNeMo is not installed, or its converter fails.
        ValueError: if there is nothing to convert.
    """
    beat("converting", slow=True)
    if os.environ.get("RANK", "0") != "0":
        return
    require()
    words, target = plan(config)
    is_start = settings(config).convert == "from_transformers"
    if target.exists():
        print(f"{target} is there already")
        return
    if is_start and Path(str(config.model.init_from)).is_dir():
        with verified(str(config.model.init_from)):
            pass  # the converter, which is a program of its own, reads it next
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    words[2] = str(partial)
    # The converter is one process, also where torchrun has started others beside it.
    for name in [name for name in os.environ if name in _OF_TORCHRUN or name.startswith("TORCHELASTIC_")]:
        del os.environ[name]
    try:
        run_entry_point("convert", words)
        if not is_start:
            write_sums(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(f"next: model.init_from={target}" if is_start else f"model   {target}")


def plan(config: RunFile) -> tuple[list[str], Path]:
    """Return the converter's command line and the path of its result.

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
        return conversion(start, target, to_bionemo=True), target
    if config.task is not None:
        raise ValueError("task: BioNeMo's converter has no fine-tuned heads; it converts pre-trained models")
    newest = newest_checkpoint(config.run_dir)
    if newest is None:
        raise ValueError(f"{config.run_dir} has no checkpoint of BioNeMo; make train-bionemo comes first")
    target = config.run_dir / "model"
    return conversion(str(newest), target, to_bionemo=False), target
