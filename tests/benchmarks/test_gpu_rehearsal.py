"""The GPU tests run on the CPU with small shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
REPOSITORY = Path(__file__).parents[2]


def rehearsed(name: str) -> str:
    """Output of a file of tests in a process of its own, since rehearsals change torch's operators."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", f"tests/gpu/{name}.py"]
    environment = os.environ | {"REHEARSE_GPU_TESTS": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("name", "at_least"), [("test_gpu_attention", 8), ("test_gpu_model", 11), ("test_gpu_hygiene", 3)]
)
def test_every_test_passes(name: str, at_least: int) -> None:
    passed, _, rest = rehearsed(name).splitlines()[-1].partition(" passed")
    assert int(passed) >= at_least and "skipped" not in rest


def test_peaks_need_a_gpu() -> None:
    said = rehearsed("test_gpu_memory")
    assert "CUDA allocator" in said and "passed" not in said
