"""A clock for one module, whose sleep the test controls. Threads of other modules sleep as usual."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace


def only_sleep(sleep: Callable[[float], object]) -> SimpleNamespace:
    """To stand in for the module ``time``."""
    return SimpleNamespace(**vars(time) | {"sleep": sleep})
