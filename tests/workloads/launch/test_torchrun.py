"""torchrun as a library, asked to stop more than once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.patience import wait_until
from tests.workloads.launch.slurm_stand_ins import REPOSITORY

AGENT = """
import pathlib, sys
from seqlm.launch.torchrun import elastic_config, run_processes

meeting = {"nproc_per_node": 1, "run_id": "1", "rdzv_endpoint": "localhost:0"}
config = elastic_config(num_nodes=1, shutdown_timeout=60, **meeting)
status = run_processes(config, sys.argv[1:]).status
(pathlib.Path(sys.argv[-1]) / "ended").touch()
raise SystemExit(status)
"""
SAVING = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])

def save(number, frame):
    (folder / "asked").touch()
    while not (folder / "enough").exists():
        time.sleep(0.05)
    (folder / "saved").touch()
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
(folder / "begun").touch()
time.sleep(600)
"""


@pytest.mark.long
def test_a_second_signal_does_not_keep_processes_from_saving(tmp_path: Path) -> None:
    """Repeat the signal as the job's supervisor does, because a starting step may miss one."""
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, "-c", SAVING, str(tmp_path)], cwd=REPOSITORY
    )
    try:
        wait_until((tmp_path / "begun").exists, "the process", seconds=90)
        agent.send_signal(signal.SIGTERM)
        wait_until((tmp_path / "asked").exists, "the signal", seconds=30)
        for _ in range(3):
            agent.send_signal(signal.SIGTERM)
            time.sleep(0.5)
        assert agent.poll() is None and not (tmp_path / "ended").exists()
        (tmp_path / "enough").touch()
        assert agent.wait(timeout=60) == 143
        assert (tmp_path / "saved").exists()
    finally:
        (tmp_path / "enough").touch()
        agent.kill()
        agent.wait()


RESTARTING = """
import pathlib, sys
from seqlm.launch.torchrun import Ending, elastic_config, run_processes

folder = pathlib.Path(sys.argv[-1])
meeting = {"nproc_per_node": 2, "run_id": "1", "rdzv_endpoint": "localhost:0"}
config = elastic_config(num_nodes=1, shutdown_timeout=60, **meeting)

def may_restart(ending: Ending) -> bool:
    with (folder / "failures").open("a") as file:
        print(ending.rank, ending.status, file=file)
    return ending.status == 137

raise SystemExit(run_processes(config, sys.argv[1:], may_restart).status)
"""
FAILING = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "0":
    time.sleep(5)
if (folder / "killed").exists():
    sys.exit(2)
(folder / "killed").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_processes_restart_in_place_if_allowed(tmp_path: Path) -> None:
    """The other process ignores SIGTERM, as one does that waits for the killed one."""
    done = subprocess.run(
        [sys.executable, "-c", RESTARTING, "-c", FAILING, str(tmp_path)],
        cwd=REPOSITORY,
        timeout=120,
    )
    assert (tmp_path / "failures").read_text().splitlines() == ["1 137", "1 2"]
    assert done.returncode == 2
