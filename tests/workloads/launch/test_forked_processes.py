"""A template forks the processes of each start, and what happens if it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqlm.launch.forked_processes import ForkedProcess, Template

PROGRAM = """
import os, sys, threading, time
from seqlm.training.memory.template import fork_if_template

imports = []

def do_imports():
    imports.append(os.getpid())
    if "with a thread" in sys.argv:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

fork_if_template(do_imports)
found = [os.environ["LOCAL_RANK"], os.getppid(), os.getpid(), len(imports)]
print(*found, file=open(sys.argv[1], "a"))
time.sleep(float(os.environ.get("SECONDS", "0")))
sys.exit(int(os.environ["LOCAL_RANK"]) + 3)
"""
"""Writes its rank, its parent, its id, and the number of imports before it was forked."""


def environment(rank: int, **values: str) -> dict[str, str]:
    return {**os.environ, "LOCAL_RANK": str(rank), **values}


@pytest.mark.parametrize(("argument", "num_imports"), [("", 1), ("with a thread", 0)])
def test_processes_are_forked_unless_a_thread_is_missing(
    tmp_path: Path, argument: str, num_imports: int
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "out"), argument]
    with Template() as template:
        for rank in (0, 1, 0):
            process = template.fork(command, environment(rank))
            assert isinstance(process, ForkedProcess)
            assert process.wait(240) == rank + 3
            line = (tmp_path / "out").read_text().splitlines()[-1]
            assert line == f"{rank} {os.getpid()} {process.pid} {num_imports}"


def test_a_forked_process_can_be_waited_for_and_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "out")]
    with Template() as template:
        process = template.fork(command, environment(0, SECONDS="60"))
        assert process.poll() is None and os.getsid(process.pid) == process.pid
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        process.kill()
        assert process.wait(240) == process.poll() == -9
        process.kill()


def test_a_template_that_ends_counts_as_the_processes_of_a_start(tmp_path: Path) -> None:
    program = f"print('x', file=open({str(tmp_path / 'out')!r}, 'a')); raise SystemExit(2)"
    command = [sys.executable, "-c", program]
    with Template() as template:
        for expected in ("x\n", "x\nx\n"):
            first = template.fork(command, environment(0))
            assert template.fork(command, environment(1)) is first
            assert first.wait(240) == 2 and (tmp_path / "out").read_text() == expected
