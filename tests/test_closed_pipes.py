"""Commands whose reader, such as ``head``, closes their output: they end without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from seqlm.training.command_line import OUTPUT_CLOSED, ending_with_reader

COST = ("-m", "tools.cost", "--cluster", "clusters/slurm.yaml")
COMMANDS = {
    "operators": COST,
    "operators, JSON": (*COST, "--json"),
    "seqlm, one line": ("-m", "seqlm", "runs", "docs"),
    "seqlm, a stage": ("-m", "seqlm", "data", "--config", "esm2_8m_sample", "--dry-run"),
}


@pytest.fixture
def unread() -> Iterator[int]:
    """End of a pipe that nothing reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("words", COMMANDS.values(), ids=list(COMMANDS))
def test_no_traceback(words: Sequence[str], unread: int) -> None:
    command = [sys.executable, *words]
    done = subprocess.run(command, stdout=unread, stderr=subprocess.PIPE, text=True)
    assert "Broken" not in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == OUTPUT_CLOSED


def test_another_broken_pipe_is_an_error(unread: int) -> None:
    with pytest.raises(BrokenPipeError), ending_with_reader():
        os.write(unread, b"x")
