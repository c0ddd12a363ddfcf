"""Processes that stand still under the agents of two nodes: found, their stacks kept, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.cluster.patience import wait_until
from tests.workloads.esm2.slurm_stand_ins import REPOSITORY, Slurm
from workloads.esm2.heartbeat import BEATS_FOLDER
from workloads.esm2.launch import hang_watch
from workloads.esm2.launch.hang_report import blame
from workloads.esm2.launch.hang_watch import HangWatch, flight_recorder
from workloads.esm2.launch.job_file import CONFIG_FILE, Job
from workloads.esm2.launch.slurm_attempts import hung_processes, stacks_folder

pytestmark = pytest.mark.long

ATTEMPT = "0.1"
# Two names of this computer.
NODES = ("localhost", "127.0.0.1")


@pytest.fixture
def job(tmp_path: Path, run_file: Path) -> Job:
    found = replace(
        Slurm(tmp_path).job,
        gpus_per_node=0,
        processes_per_node=1,
        overrides=("train.max_steps=1000000",),
        run_dir=str(tmp_path / "runs/run"),
        # Longer than a busy machine keeps a process that trains from its turn.
        hang_seconds=12,
    )
    (tmp_path / "job" / CONFIG_FILE).write_bytes(run_file.read_bytes())
    found.write(tmp_path / "job")
    return found


@contextmanager
def agents(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Of two nodes, as srun would start them."""
    arguments = [str(folder / "job.json"), ATTEMPT, "train", ",".join(NODES)]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "workloads.esm2.launch.node_agent", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": node},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in NODES
    ]
    try:
        yield started
    finally:
        for agent in started:
            if agent.poll() is None:
                for child in psutil.Process(agent.pid).children(recursive=True):
                    child.kill()
                agent.kill()
            agent.communicate(timeout=30)


def worker_of(agent: subprocess.Popen[str]) -> psutil.Process:
    (worker,) = psutil.Process(agent.pid).children()
    return worker


def test_a_stopped_process_is_found_and_blamed(job: Job, tmp_path: Path) -> None:
    folder, metrics = tmp_path / "job", Path(job.run_dir) / "metrics.jsonl"
    with agents(folder) as (first, second):
        wait_until(
            lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 5, "steps", seconds=90
        )
        workers = [worker_of(first), worker_of(second)]
        workers[1].send_signal(signal.SIGSTOP)
        for agent in (first, second):
            output, _ = agent.communicate(timeout=120)
            assert agent.returncode == 1, output
        assert not any(worker.is_running() for worker in workers)
    found = {process.node: process for process in hung_processes(folder, ATTEMPT)}
    assert found.keys() == set(NODES)
    guilty = found[NODES[1]]
    assert guilty.state == "T" and guilty.doing == "training" and guilty.place
    assert blame(list(found.values()), NODES).processes == (guilty,)
    waiting = found[NODES[0]]
    assert waiting.waits and waiting.silent_seconds > 1, waiting
    stacks = stacks_folder(folder, ATTEMPT)
    for process in found.values():
        text = (stacks / f"rank-{process.rank}.txt").read_text()
        assert f"state: {process.state}\n" in text
        assert "in _loop" in text.partition("\nStack ")[2].partition("\n\n")[0]


BEATING = """
import os, sys, threading, time
from workloads.esm2.heartbeat import beat

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


def test_a_process_that_never_begins_has_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody to ask: the agent ends, and Slurm with it the rest."""
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
