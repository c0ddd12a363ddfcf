"""Visibility of the machine's GPUs in tests."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_configure

REPOSITORY = Path(__file__).parents[1]


def test_these_tests_see_none() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("arguments", "visible"),
    [
        (["tests/gpu"], "0"),
        (["tests/gpu/test_gpu_model.py::test_masks_are_those_of_the_cpu", "tests/gpu"], "0"),
        ([str(REPOSITORY / "tests/gpu")], "0"),
        (["tests/gpu", "tests/benchmarks"], ""),
        (["tests"], ""),  # nothing given: what testpaths says
    ],
)
def test_gpu_tests_alone_do(
    arguments: list[str], visible: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    config: Any = SimpleNamespace(args=arguments, invocation_params=SimpleNamespace(dir=REPOSITORY))
    pytest_configure(config)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


def test_all_tests_are_not_those_on_gpus(request: pytest.FixtureRequest) -> None:
    """``make test`` leaves out folders whose tests need another machine."""
    assert "tests/gpu" in request.config.getini("norecursedirs")
