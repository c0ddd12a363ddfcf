"""Folder of a job in the memory of a pod's node: who holds it, and what the pod's command gets."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqlm.launch.pod_memory import ROOT, take_folder
from seqlm.training.memory.job_folder import LOCK_FILE, MEMORY_FOLDER, MEMORY_PROBLEM

JOB = "train-sample-1a2b3c"
COMMAND = f"""
import fcntl, os
folder = os.environ.get("{MEMORY_FOLDER}")
print(folder, os.environ.get("{MEMORY_PROBLEM}"))
if folder:
    with open(folder + "/{LOCK_FILE}") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("held")
"""


def run_as_pod(root: Path) -> list[str]:
    """Return what a command prints that runs in place of the module."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "seqlm.launch.pod_memory", JOB),
            *(sys.executable, "-c", COMMAND),
        ],
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), ROOT: str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_command_holds_a_private_folder(tmp_path: Path) -> None:
    first = tmp_path / f"{JOB}.0"
    assert run_as_pod(tmp_path) == [f"{first} None", "held"]
    assert first.stat().st_mode & 0o777 == 0o700
    (first / "step-00000005").mkdir()
    with (first / LOCK_FILE).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert take_folder(tmp_path, JOB) == tmp_path / f"{JOB}.1", "another pod of the node"
    assert take_folder(tmp_path, JOB) == first, "the next pod continues from it"
    assert (first / "step-00000005").is_dir()


def test_the_command_runs_without_a_folder(tmp_path: Path) -> None:
    (tmp_path / f"{JOB}.0").mkdir(mode=0o755)
    [said] = run_as_pod(tmp_path)
    assert said.startswith("None ") and "with mode 700, got one of user" in said
    [said] = run_as_pod(tmp_path / "missing")
    assert "No such file or directory" in said


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / f"{JOB}.0"
    folder.mkdir(mode=0o700)
    (tmp_path / "target").touch()
    (folder / LOCK_FILE).symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        take_folder(tmp_path, JOB)
