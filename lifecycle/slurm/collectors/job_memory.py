"""Deletes the states in memory that ended jobs have left on this node (``job-memory.timer``).

A training job keeps states in ``/dev/shm/seqlm-<user id>-<job>`` and deletes the folder at its end. If all of
its processes are killed, the folder stays, and its memory is missing for other jobs. A job that is requeued
needs its folder again, also if Slurm has ended it on this node, so an epilog of Slurm could not delete it.
Standard library only.
"""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

IN_MEMORY = Path("/dev/shm")
FOLDER = re.compile(r"seqlm-(\d+)-(\d+)")
"""Name of the folder of a job: user id and number of the job."""
PROCESSES = Path("/proc")
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
"""States of jobs that do not start again. Slurm shows a job that it requeues as pending or completing."""
UNKNOWN_JOB = "Invalid job id"
"""In squeue's message about a job that ended some time ago (MinJobAge)."""
ANSWER_SECONDS = 60


def main() -> None:
    """Delete the folders of ended jobs."""
    for folder in sorted(IN_MEMORY.glob("seqlm-*")):
        found = FOLDER.fullmatch(folder.name)
        if found is None:
            continue
        user, job = found.groups()
        # Everybody may create a file or link of any name there.
        status = folder.lstat()
        is_theirs = stat.S_ISDIR(status.st_mode) and status.st_uid == int(user)
        if is_theirs and not runs_here(job) and has_ended(job):
            with as_user(int(user)):
                shutil.rmtree(folder)
            print(f"{folder}: deleted, because job {job} has ended", flush=True)


def runs_here(job: str) -> bool:
    """Return whether a daemon of Slurm watches a step of the job on this node."""
    beginning = f"slurmstepd: [{job}.".encode()
    for command_line in PROCESSES.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process has ended
            if command_line.read_bytes().startswith(beginning):
                return True
    return False


def has_ended(job: str) -> bool:
    """Return whether Slurm says that a job has ended for good; False if it does not answer."""
    command = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode:
        if UNKNOWN_JOB in done.stderr:
            return True
        print(f"squeue --jobs={job}: {done.stderr.strip()}", file=sys.stderr, flush=True)
        return False
    states = set(done.stdout.split())
    return bool(states) and states <= ENDED


@contextlib.contextmanager
def as_user(number: int) -> Iterator[None]:
    """Act as a user, so that a link in one of their folders leads to nothing that is not theirs."""
    own = os.geteuid()
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(own)


if __name__ == "__main__":
    main()
