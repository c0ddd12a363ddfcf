"""Which tests see the machine's GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SHOWS = """
import os, pytest

class Shown:
    def pytest_collection(self, session):
        pytest.exit(f"visible: {os.environ.get('CUDA_VISIBLE_DEVICES')!r}", returncode=0)

pytest.main(["-p", "no:cacheprovider", *os.environ["ARGUMENTS"].split()], plugins=[Shown()])
"""


def test_these_tests_see_none() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("arguments", "visible"),
    [
        ("tests/gpu", "'0'"),
        ("tests/gpu/test_gpu_model.py tests/gpu/test_gpu_hygiene.py", "'0'"),
        ("tests/gpu tests/benchmarks/test_quality.py", "''"),
        ("", "''"),
    ],
)
def test_gpu_tests_alone_do(arguments: str, visible: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOWS],
        cwd=REPOSITORY,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "0", "ARGUMENTS": arguments},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert f"visible: {visible}" in done.stdout + done.stderr, done.stdout + done.stderr
