"""Requests of a job to Slurm's controller, which may be slow or just restarting: a job outlasts that."""

from __future__ import annotations

import subprocess
import time

SECONDS = 60
"""Of one request: the programs give up by themselves, after once or twice MessageTimeout (10 s usually)."""
PATIENCE_SECONDS = 600.0
"""For a controller that does not answer. The nodes of the job are idle meanwhile."""
PAUSE_SECONDS = 10.0


def ask(*command: str) -> str | None:
    """What it printed; None if it failed, or had no answer in time."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def insist(*command: str) -> str | None:
    """Ask again as long as the controller does not answer; None if it refuses, or is away for too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        answers = ask("scontrol", "ping") is not None
        if (said := ask(*command)) is not None:
            return said
        if answers or time.monotonic() > deadline:
            return None
        time.sleep(PAUSE_SECONDS)
