"""Disks that fail at any moment of a save: the last complete checkpoint is always there, and is read back."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seqlm.training import checksums
from seqlm.training.checkpoint import Checkpointer, CheckpointError
from seqlm.training.processes import Processes, processes

ROUNDS = 12
SAVES = 6
ERRORS = (errno.EIO, errno.ENOSPC, errno.ESTALE, errno.EACCES, errno.EMFILE, errno.EROFS)
OPERATIONS = ((os, "fsync"), (os, "rename"), (os, "replace"), (checksums, "digest_of"))
"""Operations of a save, each of which may fail."""


def failing(operation: Callable[..., Any], draw: random.Random) -> Callable[..., Any]:
    """Return an operation that fails from one of its next calls on."""
    left = draw.randrange(4)
    number = draw.choice(ERRORS)

    def run(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(number, os.strerror(number))
        return operation(*arguments, **named)

    return run


def test_the_last_complete_checkpoint_survives_every_failure(
    rounds: Callable[[int], Iterator[random.Random]], tmp_path: Path
) -> None:
    num_failed = num_rounds = 0
    with processes() as here:
        for draw in rounds(ROUNDS):
            num_rounds += 1
            num_failed += save_and_fail(here, tmp_path / "checkpoints", draw)
            shutil.rmtree(tmp_path / "checkpoints")
    assert num_rounds == 1 or num_failed > num_rounds, "the failures do not meet the saves"


def save_and_fail(here: Processes, folder: Path, draw: random.Random) -> int:
    """Save several steps, some of them on a failing disk; return the number of failures."""
    model = nn.Linear(3, 2)
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(model.parameters())]
    complete: dict[int, torch.Tensor] = {}
    num_failed = 0
    with Checkpointer(folder, here, {}, keep=2) as checkpointer:
        for step in range(1, SAVES + 1):
            with torch.no_grad():
                model.weight.fill_(step)
            with pytest.MonkeyPatch.context() as patched:
                if step > 1 and draw.random() < 0.6:
                    owner, name = draw.choice(OPERATIONS)
                    patched.setattr(owner, name, failing(getattr(owner, name), draw))
                try:
                    checkpointer.save(step, model, optimizers, {"progress": {"step": step}})
                    checkpointer.finish()
                except (CheckpointError, OSError):
                    num_failed += 1
            if (folder / f"step-{step:08d}").is_dir():
                complete[step] = model.weight.detach().clone()
    with Checkpointer(folder, here, {}, keep=2) as checkpointer:
        model = nn.Linear(3, 2)
        optimizers = [torch.optim.AdamW(model.parameters())]
        document = checkpointer.restore(model, optimizers)
    assert document is not None
    assert document["step"] == max(complete)
    assert torch.equal(model.weight.detach(), complete[max(complete)])
    assert not [path.name for path in folder.iterdir() if ".damaged" in path.name]
    return num_failed
