"""Set up ~/.ssh of all users, each in a process of its own: users_ssh.py SECONDS, as root.

Standard input is a JSON list of objects with ``name``, ``uid``, ``gid``, ``home`` and ``keys``. Standard
output is a JSON list of objects with ``name``, ``status``, ``output`` and ``errors``. The status is null for
a user whose home does not answer within the time.

Root does nothing in a home. Each process gives up root's rights before it touches one. It starts no other
program, except ssh-keygen for a user without a key.
"""

import contextlib
import json
import os
import selectors
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import user_ssh  # loaded here, because users may not be able to read this folder

PARALLEL = 8
"""Processes at the same time. They wait for the shared file system, more than for a core."""
MOST_BYTES = 65536
"""Most output that is read of a process, which a user could make endless."""
LOOK_SECONDS = 0.05
"""Time between two looks at a process that has closed its output."""
PROGRAMS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOST_FILES = 1024
"""Numbers of files that a process closes: those of other processes' output."""


@dataclass
class Running:
    user: dict[str, Any]
    pid: int
    deadline: float
    said: dict[int, bytes]
    """Output and errors until now, by the file from which they are read."""
    open_files: set[int] = field(default_factory=set)
    status: int | None = None
    """Exit status; None while the process runs, and if it did not end in time."""

    def ended(self) -> bool:
        """Return whether the process has ended, and keep its status."""
        if self.open_files:
            return False
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.status = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def kill(self) -> None:
        # Its children would hold on to the home, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        # A process that the file system blocks cannot be awaited.
        os.waitpid(self.pid, os.WNOHANG)

    def result(self) -> dict[str, Any]:
        output, errors = (text.decode(errors="replace") for text in self.said.values())
        return {
            "name": self.user["name"],
            "status": self.status,
            "output": output,
            "errors": errors,
        }


def main() -> None:
    seconds = float(sys.argv[1])
    waiting = json.loads(sys.stdin.read())
    running: list[Running] = []
    results = []
    with selectors.DefaultSelector() as selector:
        while waiting or running:
            while waiting and len(running) < PARALLEL:
                running.append(start(waiting.pop(0), seconds, selector))
            read(running, selector)
            for process in [*running]:
                is_late = time.monotonic() > process.deadline
                if not process.ended() and not is_late:
                    continue
                if process.status is None:
                    process.kill()
                for file in process.open_files:
                    selector.unregister(file)
                    os.close(file)
                running.remove(process)
                results.append(process.result())
    print(json.dumps(results))


def start(user: dict[str, Any], seconds: float, selector: selectors.BaseSelector) -> Running:
    output, write_output = os.pipe()
    errors, write_errors = os.pipe()
    pid = os.fork()
    if pid == 0:
        set_up_as(user, write_output, write_errors)
    os.close(write_output)
    os.close(write_errors)
    process = Running(user, pid, time.monotonic() + seconds, {output: b"", errors: b""})
    for file in process.said:
        selector.register(file, selectors.EVENT_READ, process)
        process.open_files.add(file)
    return process


def read(running: list[Running], selector: selectors.BaseSelector) -> None:
    """Read what processes have written. A file at its end, or with too much, is closed."""
    is_open = any(process.open_files for process in running)
    all_open = all(process.open_files for process in running)
    left = min(process.deadline for process in running) - time.monotonic()
    wait = max(0.0, left if all_open else min(left, LOOK_SECONDS))
    if not is_open:
        time.sleep(wait)
        return
    for key, _ in selector.select(wait):
        process: Running = key.data
        file = key.fd
        piece = os.read(file, MOST_BYTES)
        process.said[file] = (process.said[file] + piece)[:MOST_BYTES]
        if not piece or len(process.said[file]) == MOST_BYTES:
            selector.unregister(file)
            os.close(file)
            process.open_files.remove(file)


def set_up_as(user: dict[str, Any], output: int, errors: int) -> None:
    """Give up root's rights, set up the folder, and end this process, whatever happens."""
    status = 1
    try:
        become(user, output, errors)
        try:
            status = user_ssh.set_up(Path(user["home"]), user["keys"])
        except OSError as error:
            print(error, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        # Also after an error of its output, because nothing else may run in the copy of this process.
        os._exit(status)


def become(user: dict[str, Any], output: int, errors: int) -> None:
    """Be a process of the user, with these files as output and errors."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for file, number in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(file, number)
    os.closerange(3, MOST_FILES)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(user["gid"], user["gid"], user["gid"])
        os.setresuid(user["uid"], user["uid"], user["uid"])
    os.chdir("/")
    name = user["name"]
    os.environ.clear()
    os.environ.update(HOME=user["home"], USER=name, LOGNAME=name, PATH=PROGRAMS)


if __name__ == "__main__":
    main()
