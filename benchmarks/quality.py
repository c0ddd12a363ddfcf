"""Held-out loss of the training benchmark's arms at equal numbers of real residues."""

from collections.abc import Callable
from typing import Any

from benchmarks.arm_setup import Setup


def compare_quality(
    setup: Setup, residues: int | None, is_quick: bool, progress: Callable[[str], None]
) -> dict[str, Any]:
    raise NotImplementedError


def quality_table(result: dict[str, Any]) -> str:
    raise NotImplementedError
