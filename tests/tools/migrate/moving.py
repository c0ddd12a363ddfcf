"""Trees that the real script and the real rsync copy, with a stand-in for mounts of file systems."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools.migrate.trees import Tree
from tools.nodes.head_node import HeadNode

NEEDS_RSYNC = pytest.mark.skipif(
    shutil.which("rsync") is None, reason="rsync is missing here: apt-get install rsync"
)
SLOW_KIB = 100
"""KiB per second of an interrupted copy, of about 300."""
# A link takes the place of the mounted folder, until it is unmounted.
MOUNT = """#!/bin/sh
for point; do device="$previous"; previous="$point"; done
rmdir "$point" && ln --symbolic "{source}" "$point"
"""
UMOUNT = """#!/bin/sh
[ -L "$1" ] && rm "$1" && mkdir "$1"
"""


@dataclass(frozen=True)
class LocalHead(HeadNode):
    """A head node on this machine, whose file systems are folders."""

    programs: Path = Path()

    def run_as_root(self, script: str, arguments: Sequence[str], say: Callable[[str], None]) -> int:
        done = subprocess.run(
            ["bash", "-c", script, "script", *arguments],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in done.stdout.splitlines():
            say(line)
        return done.returncode

    def environment(self) -> dict[str, str]:
        temporary = str(self.programs / "tmp")
        return {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", "TMPDIR": temporary}

    @contextmanager
    def slow_rsync(self) -> Iterator[None]:
        """Have rsync copy slowly, so that it can be interrupted."""
        own = self.programs / "rsync"
        own.write_text(f'#!/bin/sh\nexec {shutil.which("rsync")} --bwlimit={SLOW_KIB} "$@"\n')
        own.chmod(0o755)
        yield
        own.unlink()

    def start_and_kill(
        self, script: str, arguments: Sequence[str], once: Callable[[], bool]
    ) -> None:
        """Start the script, and kill it with all its processes once it is at work, as a failing node does."""
        process = subprocess.Popen(
            ["bash", "-c", script, "script", *arguments],
            env=self.environment(),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        while not once():
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def local_head(folder: Path, source: Path) -> LocalHead:
    """Return a head node for which a mount of any device gives ``source``."""
    programs = folder / "programs"
    (programs / "tmp").mkdir(parents=True)
    for name, text in (("mount", MOUNT.format(source=source)), ("umount", UMOUNT)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return LocalHead("controller-1", start=("a session",), programs=programs)


def tree(target: Path, *, below: str = "", left_out: Sequence[str] = ()) -> Tree:
    return Tree("homes", "nfs", "fs-0123:/fsx", below, str(target), tuple(left_out))


Entry = tuple[int, int, int, int, bytes]


def entries(folder: Path) -> dict[str, Entry]:
    """Owner, group, mode, time and content of everything below a folder, by its path."""
    found: dict[str, Entry] = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        if path.is_symlink():
            content = os.readlink(path).encode()
        else:
            content = path.read_bytes() if path.is_file() else b""
        name = str(path.relative_to(folder))
        found[name] = (state.st_uid, state.st_gid, state.st_mode, state.st_mtime_ns, content)
    return found


def hard_links(folder: Path) -> list[list[str]]:
    """Names that are the same file."""
    names: dict[int, list[str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            names.setdefault(path.stat().st_ino, []).append(str(path.relative_to(folder)))
    return sorted(group for group in names.values() if len(group) > 1)


def wait_for_lock(action: Callable[[], object]) -> object:
    """Repeat an action until the processes of a killed copy have ended."""
    for _ in range(50):
        try:
            return action()
        except ValueError as error:
            if "a copy into" not in str(error):
                raise
        time.sleep(0.1)
    raise AssertionError("the killed copy still holds its lock")
