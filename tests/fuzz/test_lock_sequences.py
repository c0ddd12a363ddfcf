"""Random sequences of commands that lock one folder: never do two of them hold its lock."""

from __future__ import annotations

import fcntl
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from seqlm.training.data.locks import LOCKS_FOLDER, Lock, try_lock

ROUNDS = 100
OPERATIONS = 30


class Commands:
    """Commands that lock a target. Each ``Lock`` has files of its own, as if it were of another process."""

    def __init__(self, target: Path, draw: random.Random) -> None:
        self.target = target
        self.held: Lock | None = None
        self.left: list[Lock] = []
        """Locks whose folder was deleted while they were held."""
        self._draw = draw
        self._is_nested = False

    def take(self) -> None:
        lock = try_lock(self.target)
        if lock is not None:
            assert self.held is None, "two commands hold the lock"
            self.held = lock

    def release(self) -> None:
        if self.held is not None:
            self.held.close()
            self.held = None

    def delete_folder(self) -> None:
        if self.held is not None:
            self.left.append(self.held)
            self.held = None
        shutil.rmtree(self.target.parent, ignore_errors=True)

    def end_late(self) -> None:
        """Have a command end whose folder was deleted."""
        if self.left:
            self.left.pop().close()

    def leave_file(self) -> None:
        """Leave a lock file without a lock, as a command that was killed."""
        if self.held is None and not self._is_nested:
            file = self.target.parent / LOCKS_FOLDER / self.target.name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def anything(self) -> None:
        choices = (self.take, self.take, self.release, self.delete_folder, self.end_late)
        self._draw.choice((*choices, self.leave_file))()

    def overtaken(self, flock: Callable[[int, int], None]) -> Callable[[int, int], None]:
        """Return a function that lets another command run between opening a file and locking it."""

        def run(descriptor: int, operation: int) -> None:
            if not self._is_nested and self._draw.random() < 0.5:
                self._is_nested = True
                try:
                    self.anything()
                finally:
                    self._is_nested = False
            flock(descriptor, operation)

        return run


def test_no_two_commands_hold_one_lock(
    rounds: Callable[[int], Iterator[random.Random]], tmp_path: Path
) -> None:
    flock = fcntl.flock
    for draw in rounds(ROUNDS):
        commands = Commands(tmp_path / "run/metrics.jsonl", draw)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(fcntl, "flock", commands.overtaken(flock))
            for _ in range(OPERATIONS):
                commands.anything()
        while commands.left:
            commands.end_late()
        if commands.held is not None:
            assert try_lock(commands.target) is None
            commands.release()
        commands.take()
        assert commands.held is not None, "the lock of ended commands is free"
        commands.release()
        assert list(commands.target.parent.iterdir()) == []
