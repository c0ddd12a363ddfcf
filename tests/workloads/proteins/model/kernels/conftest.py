from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.triton_interpreter import Interpreter, interpreter_process


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    with interpreter_process() as process:
        yield process
