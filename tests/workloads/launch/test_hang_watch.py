"""Processes that stand still: found, their stacks kept, and ended. tests/cluster has them under agents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seqlm.launch import hang_watch
from seqlm.launch.hang_watch import HangWatch, flight_recorder
from seqlm.launch.slurm_attempts import hung_processes
from seqlm.training.heartbeat import BEATS_FOLDER
from tests.cluster.patience import wait_until
from tests.workloads.launch.slurm_stand_ins import REPOSITORY

pytestmark = pytest.mark.long

BEATING = """
import os, sys, threading, time
from seqlm.training.heartbeat import beat

def listen():
    rank = os.environ["RANK"]
    pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
    os.mkfifo(pipe)
    with open(pipe) as stream:
        stream.readline()
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank, "w") as stream:
        stream.write("collectives")

threading.Thread(target=listen, daemon=True).start()
beat("restoring", slow=True)
if sys.argv[1] == "slow":
    time.sleep(1000)
if sys.argv[1] == "stands still":
    while not all(map(os.path.exists, sys.argv[2:])):
        beat("training")
        time.sleep(0.2)
for _ in range(5):
    beat("training")
    time.sleep(0.2)
if sys.argv[1] == "ended":
    open(sys.argv[2], "w").close()
    os._exit(0)
time.sleep(1000)
"""
HANG_SECONDS = 6


def test_what_is_a_hang_and_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_watch, "POLL_SECONDS", 0.1)
    monkeypatch.setenv(BEATS_FOLDER, "")
    beats, stacks = tmp_path / "beats", tmp_path / "job/stacks/1"
    beats.mkdir()
    end = str(tmp_path / "end")
    # The last stands still only when the others are where they should be, however long that takes them.
    cases = (["slow"], ["ended", end], ["stands still", end, str(beats / "0.json")])
    recorder = flight_recorder(beats, stacks)
    watch = HangWatch(
        beats=beats,
        stacks=stacks,
        endings=tmp_path / "job/endings/1",
        node="node-1",
        num_nodes=1,
        num_processes=len(cases),
        hang_seconds=HANG_SECONDS,
        start_seconds=90,
    )
    with watch:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", BEATING, *case],
                cwd=REPOSITORY,
                env=os.environ | recorder | {"LOCAL_RANK": str(number), "RANK": str(number + 4)},
            )
            for number, case in enumerate(cases)
        ]
        statuses = [process.wait(timeout=90) for process in started]
    assert watch.hung and statuses == [-signal.SIGKILL, 0, -signal.SIGKILL]
    slow, ended, still = hung_processes(tmp_path / "job", "1")
    assert [found.rank for found in (slow, ended, still)] == [4, 5, 6]
    assert (slow.state, slow.doing, still.state, still.doing) == ("S", "restoring", "S", "training")
    # All were silent for longer than the bound, one of them alone was to be judged by it.
    assert slow.silent_seconds > still.silent_seconds >= HANG_SECONDS
    assert "in <module>" in (stacks / "rank-6.txt").read_text()
    # As NCCL answers through its pipe.
    assert (stacks / "nccl-rank-6").read_text() == "collectives"


def test_a_process_that_never_begins_has_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other node can answer, so the agent ends, and Slurm ends the other processes."""
    monkeypatch.setattr(hang_watch, "POLL_SECONDS", 0.1)
    monkeypatch.setenv(BEATS_FOLDER, "")
    stacks, endings = tmp_path / "job/stacks/1", tmp_path / "job/endings/1"
    watch = HangWatch(
        beats=tmp_path,
        stacks=stacks,
        endings=endings,
        node="node-1",
        num_nodes=1,
        num_processes=1,
        hang_seconds=0.1,
        start_seconds=0.5,
    )
    with watch:
        wait_until(endings.exists, "the record", seconds=30)
    (found,) = hung_processes(tmp_path / "job", "1")
    assert watch.hung and (found.rank, found.doing, found.place) == (None, "not begun", "")
    assert (stacks / "node-1-process-0.txt").exists()
