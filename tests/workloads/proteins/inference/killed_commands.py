"""Commands of inference that are killed while they compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from seqlm.proteins.inference.engine import Engine


@dataclass
class EngineCalls:
    """Calls of ``Engine.run`` so far."""

    number: int = 0


def kill_at_call(fatal: int, patch: pytest.MonkeyPatch) -> EngineCalls:
    """Interrupt one call of ``Engine.run``, as Ctrl-C would, and count all calls.

    Args:
        fatal: number of the interrupted call, from 1.
        patch: monkeypatch that restores the engine.
    """
    run = Engine.run
    calls = EngineCalls()

    def counted(*arguments: Any) -> Any:
        calls.number += 1
        if calls.number == fatal:
            raise KeyboardInterrupt
        return run(*arguments)

    patch.setattr(Engine, "run", counted)
    return calls
