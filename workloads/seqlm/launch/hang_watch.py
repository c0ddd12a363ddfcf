"""Watch for hangs of the processes of a node, in a thread of the node's agent.

A process that has not advanced (``heartbeat.py``) within a time limit has hung. With it the whole step has,
because the others wait for it. The first node that detects this reports it to the agents of the other nodes
(``hang_channel.py``). Then each agent

1. writes the stacks of its processes to the shared file system, and their states into its record of the
   attempt's end,
2. waits until the other nodes have done so,
3. kills its processes.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seqlm.training.heartbeat import BEATS_FOLDER, STACK_SIGNAL, THREADS_SIGNAL

from .hang_channel import Event, HangChannel
from .hang_report import STOPPED, Observed, frames_of, is_waiting, place_of
from .slurm_attempts import write_ending

POLL_SECONDS = 1.0
DUMP_SECONDS = 10.0
"""Longest wait for stacks to be written."""
OTHERS_SECONDS = 30.0
"""Longest wait for the other nodes' stacks. Later ones are lost, because Slurm ends all processes."""
NODES_PER_SECOND = 50
"""Nodes whose files the shared file system takes per second. The longest wait grows by their time."""
END_SECONDS = 30.0
"""Longest wait for killed processes to end. A broken device may block one, which is left to Slurm."""
_ENDED = ("", "Z", "X")
"""States of processes that have ended; empty without such a process."""
_LIBC = ctypes.CDLL(None)
_PIPE = "flight-recorder-"
"""Beginning of the names of the pipes by which NCCL's records are requested."""
_NCCL = "nccl-rank-"
"""Beginning of the names of NCCL's records."""


@dataclass(frozen=True)
class _Process:
    """State of a process of this node."""

    local_rank: int
    record: Mapping[str, Any]
    """Record that ``heartbeat`` writes; empty before its first beat."""
    state: str
    """State in /proc/<pid>/stat; empty if there is no such process."""
    silent_seconds: float
    """Seconds since it last advanced."""


@dataclass(kw_only=True)
class HangWatch:
    """Watch of the processes of one node, while the context is open."""

    beats: Path
    """Folder of the node for heartbeats."""
    stacks: Path
    """Folder of the attempt on the shared file system, created after a hang."""
    endings: Path
    """Folder of the attempt with a record for each node, on the shared file system."""
    channel: HangChannel
    """Open connection to the other nodes."""
    node: str
    num_nodes: int
    """Nodes of the step."""
    num_processes: int
    """Processes of this node."""
    hang_seconds: float
    """Seconds without an advance after which a process counts as hung."""
    start_seconds: float
    """The same for phases that the process reports as slow, and before its first report."""
    hung: bool = False
    """Whether the processes hung. Then the node's record of the attempt's end is written."""

    def __post_init__(self) -> None:
        self._touched = [0] * self.num_processes
        """Time at which each process last wrote its record, in ns."""
        self._silent = [0.0] * self.num_processes
        """Seconds since each process last advanced."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hang-watch", daemon=True)

    def __enter__(self) -> "HangWatch":
        os.environ[BEATS_FOLDER] = str(self.beats)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(POLL_SECONDS):
            now = time.monotonic()
            # Time in which this thread did not run either does not count, as when the job is suspended.
            elapsed = min(now - before, 2 * POLL_SECONDS)
            before = now
            processes = [
                self._look(local_rank, elapsed) for local_rank in range(self.num_processes)
            ]
            is_reported = self.channel.count(Event.HUNG) > 0
            if is_reported or any(self._is_hung(process) for process in processes):
                self.hung = True
                self._end_hung(processes)
                return

    def _look(self, local_rank: int, elapsed: float) -> _Process:
        """Return the state of a process, ``elapsed`` seconds after the previous look."""
        path = self.beats / f"{local_rank}.json"
        touched = path.stat().st_mtime_ns if path.exists() else 0
        has_advanced = touched != self._touched[local_rank]
        silent = 0.0 if has_advanced else self._silent[local_rank] + elapsed
        self._touched[local_rank] = touched
        self._silent[local_rank] = silent
        record: dict[str, Any] = {}
        if touched:
            # A record that is not complete yet is read at the next look.
            with contextlib.suppress(ValueError):
                record = json.loads(path.read_text())
        state = state_of(record["pid"]) if record else ""
        return _Process(local_rank, record, state, silent)

    def _is_hung(self, process: _Process) -> bool:
        if process.record and process.state in _ENDED:
            return False  # torchrun handles its end
        is_slow = process.record.get("slow", True)
        limit = max(self.start_seconds, self.hang_seconds) if is_slow else self.hang_seconds
        return process.silent_seconds >= limit

    def _end_hung(self, processes: list[_Process]) -> None:
        """Write the stacks and states of all processes, and kill them."""
        self.channel.announce(Event.HUNG)
        alive = [process for process in processes if process.state not in _ENDED]
        stopped = [process for process in alive if process.state in STOPPED]
        try:
            self.stacks.mkdir(parents=True, exist_ok=True)
            files = {process.local_rank: self._request_stacks(process) for process in alive}
            running = [process for process in alive if process not in stopped]
            self._wait_for_files(
                [file for process in running for file in files[process.local_rank]]
            )
            # A stopped process receives signals when it continues. Processes that wait for it then continue,
            # so their stacks must be complete on all nodes.
            self._wait_for_others(Event.STACKS)
            for process in stopped:
                _send(process, signal.SIGCONT)
            self._wait_for_files(
                [file for process in stopped for file in files[process.local_rank]]
            )
            for process in alive:
                _send(process, THREADS_SIGNAL)
            self._wait_for_files([self._file(process, "threads") for process in alive])
            observed = [self._write_stacks(process) for process in processes]
            write_ending(self.endings, self.node, hung=observed)
            self._wait_for_others(Event.ENDED)
        except OSError as error:
            print(f"stacks of {self.node} cannot be kept: {error}", file=sys.stderr)
        for process in alive:
            _send(process, signal.SIGKILL)
        if not self._over.wait(END_SECONDS):
            os._exit(1)

    def _request_stacks(self, process: _Process) -> list[Path]:
        """Request a process's stack and its NCCL's records. Return the files that will have them."""
        pid = process.record["pid"]
        rank = process.record["rank"]
        # To the main thread, because another thread may take a signal that is sent to the process.
        _LIBC.tgkill(pid, pid, STACK_SIGNAL)
        files = [self._file(process, "stack")]
        with contextlib.suppress(OSError):  # without NCCL, no process reads the pipe
            pipe = os.open(f"{self.beats}/{_PIPE}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"1\n")
            os.close(pipe)
            files.append(Path(f"{self.stacks}/{_NCCL}{rank}"))
        return files

    def _file(self, process: _Process, what: str) -> Path:
        return self.beats / f"{process.local_rank}.{what}"

    def _wait_for_files(self, files: list[Path]) -> None:
        """Wait until the files exist and no longer grow."""
        deadline = time.monotonic() + DUMP_SECONDS
        before: list[int] = []
        while (sizes := [_size(file) for file in files]) != before or not all(sizes):
            if time.monotonic() > deadline:
                return
            before = sizes
            time.sleep(0.3)

    def _wait_for_others(self, event: Event) -> None:
        """Announce an event of this node, and wait until each node has announced it."""
        deadline = time.monotonic() + OTHERS_SECONDS + self.num_nodes / NODES_PER_SECOND
        self.channel.announce(event)
        while self.channel.count(event) < self.num_nodes and time.monotonic() < deadline:
            time.sleep(0.2)

    def _write_stacks(self, process: _Process) -> dict[str, Any]:
        """Write a file with the stacks of a process, and return the fields of its ``Observed``."""
        record = process.record
        stack = _text(self._file(process, "stack"))
        frames = frames_of(stack)
        observed = asdict(
            Observed(
                node=self.node,
                rank=record.get("rank"),
                state=process.state,
                silent_seconds=round(process.silent_seconds, 1),
                doing=record.get("doing", "not begun"),
                place=place_of(frames),
                waits=is_waiting(frames),
            )
        )
        name = f"rank-{record['rank']}" if record else f"{self.node}-process-{process.local_rank}"
        head = "".join(f"{key}: {value}\n" for key, value in observed.items())
        threads = _text(self._file(process, "threads"))
        (self.stacks / f"{name}.txt").write_text(f"{head}\n{stack}\n{threads}")
        return observed


def flight_recorder(beats: Path, stacks: Path) -> dict[str, str]:
    """Return the environment in which NCCL writes its last operations on request, with one pipe per process.

    The names are those of torch 2.13 (ProcessGroupNCCL.hpp, FlightRecorder.hpp), which records 2,000
    operations by default. ``torchfrtrace`` reads the files.
    """
    return {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{beats}/{_PIPE}",
        "TORCH_FR_DUMP_TEMP_FILE": f"{stacks}/{_NCCL}",
    }


def state_of(pid: int) -> str:
    """Return the state in /proc/<pid>/stat, one letter (proc(5)); empty without such a process."""
    return _text(Path(f"/proc/{pid}/stat")).rpartition(") ")[2][:1]


def _text(path: Path) -> str:
    """Return the contents of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _send(process: _Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.record["pid"], number)
