"""Tests on CUDA, with nothing but what a GPU machine without a network has installed.

``REHEARSE_GPU_TESTS=1`` runs the same tests on the CPU with small shapes (``rehearsal.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

from tests.gpu import rehearsal
from tests.gpu.drawn import Scale

IS_REHEARSAL = os.environ.get("REHEARSE_GPU_TESTS") == "1"
if IS_REHEARSAL:
    rehearsal.begin()
    torch.set_num_threads(1)

Within = Callable[[str, float, float], None]


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Device of all tests."""
    if not IS_REHEARSAL and not torch.cuda.is_available():
        pytest.skip(
            "no CUDA device is visible; REHEARSE_GPU_TESTS=1 rehearses the GPU tests on the CPU"
        )
    return torch.device("cpu" if IS_REHEARSAL else "cuda")


@pytest.fixture(scope="session", autouse=True)
def has_device(device: torch.device) -> None:
    """Skip every test without CUDA, for one reason."""


@pytest.fixture(scope="session")
def scale() -> Scale:
    return Scale.rehearsal() if IS_REHEARSAL else Scale()


@pytest.fixture
def within(record_property: Callable[[str, object], None]) -> Within:
    """Record a measured error and its tolerance for the acceptance run, and assert that it is within."""

    def check(name: str, error: float, tolerance: float) -> None:
        record_property(name, error)
        record_property(f"{name}, tolerance", tolerance)
        assert error <= tolerance, f"{name}: got {error:.3g}, expected at most {tolerance:.3g}"

    return check
