"""Makes the last process of a job faulty. Jobs find a copy as ``sitecustomize``; ``FAULT`` names the fault.

* ``slow``: the process sleeps in each layer, and the three minutes until it is named are two seconds.
* ``sick``: one gradient of one step is not finite, once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

FAULT = "FAULT"
"""Environment variable with the name of the fault. Only jobs have it."""
SLEEP_SECONDS = 0.1
SECONDS_UNTIL_NAMED = 2.0
SICK_PASS = 12
"""Number of the pass that is spoilt, after two states."""
MARK = Path(__file__).with_name("was-sick")
"""File that exists once the gradient was spoilt."""


def is_last() -> bool:
    return int(os.environ["RANK"]) + 1 == int(os.environ["WORLD_SIZE"])


def shorten(module: ModuleType) -> None:
    module.SLOW_SECONDS = SECONDS_UNTIL_NAMED  # type: ignore[attr-defined]


def slow_down(module: ModuleType) -> None:
    """Replace the pass through a layer by one that sleeps in the last process."""
    forward = module.PackedLayer.forward

    def slow_forward(*arguments: Any) -> Any:
        if is_last():
            time.sleep(SLEEP_SECONDS)
        return forward(*arguments)

    module.PackedLayer.forward = slow_forward


def spoil(module: ModuleType) -> None:
    """Replace the loss by one whose gradient is not a number, in one step of the last process."""
    plain = module.Pretraining.loss_sum
    passes = count(1)

    def loss_sum(*arguments: Any) -> Any:
        loss = plain(*arguments)
        if loss.requires_grad and is_last() and next(passes) == SICK_PASS and not MARK.exists():
            MARK.touch()
            loss.register_hook(lambda gradient: gradient * float("nan"))
        return loss

    module.Pretraining.loss_sum = loss_sum


CHANGES: dict[str, dict[str, Callable[[ModuleType], None]]] = {
    "slow": {
        "seqlm.training.health.slow_processes": shorten,
        "seqlm.proteins.model.packed_layer": slow_down,
    },
    "sick": {"seqlm.proteins.pretraining.objective": spoil},
}


class Changing:
    """Finder that changes some modules when they are imported.

    Args:
        changes: functions that change the modules, by the modules' names.
    """

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._changes:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._changes[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FAULT in os.environ:
    sys.meta_path.insert(0, Changing(CHANGES[os.environ[FAULT]]))
