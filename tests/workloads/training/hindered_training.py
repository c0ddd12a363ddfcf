"""``seqlm train`` for tests, slowed down or made to fail by environment variables.

HOLD_SECONDS: time that a micro-batch takes at least, so that a signal meets the run halfway. FAIL_RANK,
FAIL_AFTER: that process fails after as many micro-batches. STOP_RANK: that process gets SIGTERM in its first
evaluation, or with STOP_STEP when it has begun that step. FILE_BYTES: no file of a process may become larger.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from itertools import count
from typing import Any

from seqlm.commands.train import train
from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.pretraining import evaluation
from seqlm.proteins.pretraining import objective as pretraining
from seqlm.runs.run_file import run_stage
from seqlm.training.trainer import Trainer

step = Trainer.step
calls = count(1)
evaluated = count(1)


def hindered_mask_pack(*arguments: Any) -> Any:
    time.sleep(float(os.environ.get("HOLD_SECONDS", "0")))
    if os.environ.get("FAIL_RANK") == os.environ["RANK"] and next(calls) > int(
        os.environ["FAIL_AFTER"]
    ):
        raise MemoryError("only this process ran out of memory")
    return mask_pack(*arguments)


def interrupted_mask_pack(*arguments: Any) -> Any:
    is_stopped = "STOP_STEP" not in os.environ and is_stop_rank()
    if is_stopped and next(evaluated) == 2:
        signal.raise_signal(signal.SIGTERM)
    return mask_pack(*arguments)


def is_stop_rank() -> bool:
    return os.environ.get("STOP_RANK") == os.environ["RANK"]


def interrupted_step(trainer: Trainer, *arguments: Any, **options: Any) -> None:
    """Launch a step. It gets its arguments, among them the flags, before the signal."""
    if is_stop_rank() and trainer.progress.step + 1 == int(os.environ.get("STOP_STEP", "0")):
        signal.raise_signal(signal.SIGTERM)
    step(trainer, *arguments, **options)


def main(*arguments: str) -> None:
    """Train with a command line's arguments."""
    if limit := os.environ.get("FILE_BYTES"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    evaluation.mask_pack = interrupted_mask_pack
    pretraining.mask_pack = hindered_mask_pack
    Trainer.step = interrupted_step  # type: ignore[method-assign, assignment]
    sys.argv[1:] = arguments
    run_stage(train)
