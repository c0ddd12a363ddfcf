"""Processes that stand still: found, their stacks kept, and ended. tests/cluster has them under agents."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from seqlm.launch import hang_channel, hang_watch
from seqlm.launch.hang_channel import Event, HangChannel, HangServer
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
    beats = tmp_path / "beats"
    stacks = tmp_path / "job/stacks/1"
    beats.mkdir()
    end = str(tmp_path / "end")
    # The last stands still only when the others are where they should be, however long that takes them.
    cases = (["slow"], ["ended", end], ["stands still", end, str(beats / "0.json")])
    recorder = flight_recorder(beats, stacks)
    watch = HangWatch(
        channel=HangChannel("node-1"),
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
    stacks = tmp_path / "job/stacks/1"
    endings = tmp_path / "job/endings/1"
    watch = HangWatch(
        channel=HangChannel("node-1"),
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
        wait_until(endings.exists, "the record", seconds=240)
    (found,) = hung_processes(tmp_path / "job", "1")
    assert watch.hung and (found.rank, found.doing, found.place) == (None, "not begun", "")
    assert (stacks / "node-1-process-0.txt").exists()


def test_nodes_learn_of_a_hang_without_looking_at_the_shared_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first node hangs. The second one, whose limits are far, writes its record, too."""
    monkeypatch.setattr(hang_watch, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(hang_channel, "RETRY_SECONDS", 0.05)
    monkeypatch.setenv(BEATS_FOLDER, "")
    shared = tmp_path / "shared"
    looks: list[str] = []
    for function in ("stat", "scandir", "listdir"):
        monkeypatch.setattr(os, function, counting(getattr(os, function), str(shared), looks))
    port = free_port()
    endings = shared / "endings/1"
    with ExitStack() as stack:
        stack.enter_context(HangServer(port, "7-1"))
        watches = []
        for node, seconds in (("node-1", 1.5), ("node-2", 900.0)):
            beats = tmp_path / node
            beats.mkdir()
            channel = stack.enter_context(
                HangChannel(node, host="localhost", port=port, run_id="7-1")
            )
            watch = HangWatch(
                channel=channel,
                beats=beats,
                stacks=shared / "stacks/1",
                endings=endings,
                node=node,
                num_nodes=2,
                num_processes=1,
                hang_seconds=seconds,
                start_seconds=seconds,
            )
            watches.append(stack.enter_context(watch))
        wait_until(
            lambda: channel.count(Event.ENDED) == 2, "the records of both nodes", seconds=240
        )
        looked = len(looks)
    assert [watch.hung for watch in watches] == [True, True]
    assert [found.node for found in hung_processes(shared, "1")] == ["node-1", "node-2"]
    # Only when they create their folders and records: a look in each round would be more than 20.
    assert looked <= 12, looks


def counting(function: Callable[..., Any], below: str, looks: list[str]) -> Callable[..., Any]:
    """The function, which notes the paths of a folder with which it is called."""

    def counted(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        if str(path).startswith(below):
            looks.append(f"{function.__name__} {path}")
        return function(path, *arguments, **options)

    return counted


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as taken:
        return int(taken.getsockname()[1])


def test_events_are_kept_until_the_first_node_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_channel, "RETRY_SECONDS", 0.05)
    port = free_port()
    first = HangChannel("node-1", host="localhost", port=port, run_id="7-1")
    second = HangChannel("node-2", host="localhost", port=port, run_id="7-1")
    stranger = HangChannel("node-3", host="localhost", port=port, run_id="of another step")
    with first, second, stranger:
        second.announce(Event.HUNG)
        stranger.announce(Event.HUNG)
        assert first.count(Event.HUNG) == 0
        with HangServer(port, "7-1"):
            wait_until(lambda: first.count(Event.HUNG) == 1, "the event", seconds=240)
        # A server that starts again learns everything again, and counts no node twice.
        with HangServer(port, "7-1"):
            first.announce(Event.HUNG)
            second.announce(Event.HUNG)
            second.announce(Event.ENDED)
            wait_until(lambda: first.count(Event.ENDED) == 1, "the second event", seconds=240)
            wait_until(lambda: second.count(Event.HUNG) == 2, "both nodes", seconds=240)
    assert first.count(Event.STACKS) == 0
