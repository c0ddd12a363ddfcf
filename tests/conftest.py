from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.shared_folder import shared_folder

LONG = ("local_aws", "workloads")
GPU_TESTS = Path(__file__).parent / "gpu"


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the environment of the tests and of all processes that they start.

    ``make test ARGS=...`` exports its variables, which a ``make`` started by a test would read as its own.
    GPUs are hidden unless the GPU tests alone run: all others would train and compare on CUDA.
    """
    shared_folder()  # before pytest-xdist starts processes, which inherit it
    for name in [name for name in os.environ if name.startswith("MAKE") or name in ("MFLAGS", "ARGS")]:
        del os.environ[name]
    wanted = [Path(config.invocation_params.dir, argument.partition("::")[0]) for argument in config.args]
    if not all(path.resolve().is_relative_to(GPU_TESTS) for path in wanted):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders of long tests come first: at the end no worker is left alone with one of their files."""
    items.sort(key=lambda item: not set(LONG) & set(item.path.parts))
