"""Model and optimizers of a start, with the weights that the run starts from or with a saved state."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checkpoint import Checkpointer
from ..checksums import verified
from ..command_line import signals_to
from ..objective import Objective
from ..optimizer import build_optimizers
from ..parallel import parallelize, set_weights
from ..processes import Processes

START_FIELD = "init_from_sha256"
"""Entry of results and of ``checkpoint.json`` with the SHA-256 of the model that the run started from."""


@dataclass(frozen=True)
class Start:
    """Model and optimizers on their device."""

    model: nn.Module
    """Model with its weights, with FSDP this process's share of it. It is not in DDP."""
    optimizers: list[Optimizer]
    sha256: str | None
    """SHA-256 of the model that the run started from; None if its weights were random."""
    saved: dict[str, Any] | None
    """``checkpoint.json`` of the restored state; None if none was restored."""


@dataclass(frozen=True)
class _Weights:
    """Weights that a run starts from."""

    values: dict[str, Tensor]
    """Full fp32 state; empty on processes that get their share from the first one."""
    sha256: str | None


def build_start(
    objective: Objective,
    here: Processes,
    dtype: torch.dtype,
    checkpointer: Checkpointer | None = None,
) -> Start:
    """Build the model and the optimizers of a run. Every process calls this.

    The weights to start from are not read if a state replaces all of them.

    Args:
        objective: model of the run.
        here: this process.
        dtype: type of matrix products.
        checkpointer: states of a run that trains all weights, the newest of which is restored; None restores
            none.

    Raises:
        ValueError: if the weights, or all states, cannot be read.
    """
    config = objective.config
    to_restore = checkpointer if checkpointer is not None and checkpointer.has_state() else None
    weights = _read(objective, here) if to_restore is None else None
    empty = objective.on_meta()
    # A run that trains all weights quantizes none, so it needs no values here.
    objective.quantize(empty, {} if weights is None else weights.values, dtype, here.device)
    # The other processes wait here for the first one, since a wait in NCCL ends after ten minutes.
    here.sum_on_host(0.0)
    if config.train.activation_checkpointing:
        empty.recompute_layers()
    values = None if weights is None else weights.values
    model = parallelize(empty, values, config.parallel, here, dtype, objective.loaded)
    optimizers = build_optimizers(model, objective.optim, dtype)
    saved: dict[str, Any] | None = None
    if to_restore is not None:
        with signals_to(here.stop):
            saved = to_restore.restore(model, optimizers)
    if saved is not None:
        return Start(model, optimizers, _recorded(objective, here, saved), saved)
    if weights is None:  # the state was damaged
        weights = _read(objective, here)
        here.sum_on_host(0.0)  # as above
        set_weights(model, weights.values, config.parallel)
    return Start(model, optimizers, weights.sha256, saved)


def _read(objective: Objective, here: Processes) -> _Weights:
    """Read the weights to start from, and verify and hash their files."""
    # With FSDP only the first process holds a whole model, on the host, and sends each its share.
    has_weights = objective.config.parallel.mode == "ddp" or here.is_first
    with verified(objective.start, here) as source:
        values = objective.weights() if has_weights else {}
    return _Weights(values, source.sha256)


def _recorded(objective: Objective, here: Processes, saved: dict[str, Any]) -> str | None:
    """Return the SHA-256 of the model that the run started from, as a state has it."""
    if START_FIELD in saved:
        sha256: str | None = saved[START_FIELD]
        return sha256
    with verified(objective.start, here) as source:  # states of earlier versions do not have it
        pass
    return source.sha256
