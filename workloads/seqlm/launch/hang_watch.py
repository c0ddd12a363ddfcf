"""Watches the processes of a node for a standstill, from a thread of the node's agent.

A process that has not advanced (``heartbeat.py``) within a bound has hung, and with it the step: the others
wait for it. The node where that is seen first makes a folder for stacks on the shared file system, which the
agents of the other nodes look for. Each then leaves its processes' stacks there, and what it found in its
record of how they ended, waits for the other nodes to have done so, and kills its processes.
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

from .hang_report import STOPPED, Observed, frames_of, is_waiting, place_of
from .slurm_attempts import write_ending

POLL_SECONDS = 1.0
DUMP_SECONDS = 10.0
"""For stacks to be written."""
OTHERS_SECONDS = 30.0
"""For the other nodes' stacks; after that they are lost: Slurm ends those nodes' processes with ours."""
END_SECONDS = 30.0
"""For killed processes to end. One that waits for a broken device does not: it is left to Slurm."""
_ENDED = ("", "Z", "X")
_LIBC = ctypes.CDLL(None)
_PIPE, _NCCL = "flight-recorder-", "nccl-rank-"


@dataclass(frozen=True)
class _Process:
    local_rank: int
    record: Mapping[str, Any]
    """Record that ``heartbeat`` writes; empty before its first beat."""
    state: str
    silent_seconds: float


@dataclass(kw_only=True)
class HangWatch:
    """``hung`` says whether the processes stood still; then what they ended with is recorded already."""

    beats: Path
    """Folder of the node for heartbeats."""
    stacks: Path
    """Folder of the attempt on the shared file system, created by the first node that detects a hang."""
    endings: Path
    """Folder of the attempt with a record for each node, on the shared file system."""
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

    def __post_init__(self) -> None:
        # Of each process: when its record was last written (ns), and for how long it has been silent since.
        self._touched, self._silent = [0] * self.num_processes, [0.0] * self.num_processes
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
            # Where this thread did not run either, a suspended job, no process is to blame.
            elapsed, before = min(now - before, 2 * POLL_SECONDS), now
            processes = [self._look(local_rank, elapsed) for local_rank in range(self.num_processes)]
            if self._is_asked() or any(self._is_hung(process) for process in processes):
                self.hung = True
                self._answer(processes)
                return

    def _look(self, local_rank: int, elapsed: float) -> _Process:
        path = self.beats / f"{local_rank}.json"
        touched = path.stat().st_mtime_ns if path.exists() else 0
        silent = 0.0 if touched != self._touched[local_rank] else self._silent[local_rank] + elapsed
        self._touched[local_rank], self._silent[local_rank] = touched, silent
        record: dict[str, Any] = {}
        if touched:
            # Half a record, if at all, is whole at the next look.
            with contextlib.suppress(ValueError):
                record = json.loads(path.read_text())
        return _Process(local_rank, record, state_of(record["pid"]) if record else "", silent)

    def _is_asked(self) -> bool:
        with contextlib.suppress(OSError):  # a shared file system that fails for a moment
            return self.stacks.exists()
        return False

    def _is_hung(self, process: _Process) -> bool:
        if process.record and process.state in _ENDED:
            return False  # torchrun sees to it
        slow = process.record.get("slow", True)
        bound = max(self.start_seconds, self.hang_seconds) if slow else self.hang_seconds
        return process.silent_seconds >= bound

    def _answer(self, processes: list[_Process]) -> None:
        alive = [process for process in processes if process.state not in _ENDED]
        stopped = [process for process in alive if process.state in STOPPED]
        try:
            self.stacks.mkdir(parents=True, exist_ok=True)
            files = {process.local_rank: self._ask(process) for process in alive}
            self._wait_for_files([f for p in alive if p not in stopped for f in files[p.local_rank]])
            # A stopped process receives signals when it continues. Processes that wait for it then continue.
            self._wait_for_others(self.stacks, ".seen")
            for process in stopped:
                _send(process, signal.SIGCONT)
            self._wait_for_files([file for process in stopped for file in files[process.local_rank]])
            for process in alive:
                _send(process, THREADS_SIGNAL)
            self._wait_for_files([self._file(process, "threads") for process in alive])
            write_ending(self.endings, self.node, hung=[self._keep(process) for process in processes])
            self._wait_for_others(self.endings, ".json")
        except OSError as error:
            print(f"stacks of {self.node} cannot be kept: {error}", file=sys.stderr)
        for process in alive:
            _send(process, signal.SIGKILL)
        if not self._over.wait(END_SECONDS):
            os._exit(1)

    def _ask(self, process: _Process) -> list[Path]:
        """Ask it where it is, and NCCL in it for its records; the files in which the answers come."""
        pid, rank = process.record["pid"], process.record["rank"]
        # To the main thread: any other one may take a signal to the process, and has not its stack.
        _LIBC.tgkill(pid, pid, STACK_SIGNAL)
        files = [self._file(process, "stack")]
        with contextlib.suppress(OSError):  # without NCCL no process reads it
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

    def _wait_for_others(self, folder: Path, suffix: str) -> None:
        """Write this node's file, and wait until each node has written one with its name and the suffix."""
        deadline = time.monotonic() + OTHERS_SECONDS
        (folder / f"{self.node}{suffix}").touch()
        while len(list(folder.glob(f"*{suffix}"))) < self.num_nodes and time.monotonic() < deadline:
            time.sleep(0.2)

    def _keep(self, process: _Process) -> dict[str, Any]:
        """Write a file of its stacks; what they say."""
        record, stack = process.record, _text(self._file(process, "stack"))
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
        (self.stacks / f"{name}.txt").write_text(f"{head}\n{stack}\n{_text(self._file(process, 'threads'))}")
        return observed


def flight_recorder(beats: Path, stacks: Path) -> dict[str, str]:
    """Return the environment in which NCCL writes its last operations on request, with one pipe per process.

    Names as in torch 2.13's ProcessGroupNCCL.hpp and FlightRecorder.hpp, which records 2000 by default;
    ``torchfrtrace`` reads its files.
    """
    return {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{beats}/{_PIPE}",
        "TORCH_FR_DUMP_TEMP_FILE": f"{stacks}/{_NCCL}",
    }


def state_of(pid: int) -> str:
    """The letter of /proc/<pid>/stat (proc(5)); empty without such a process."""
    return _text(Path(f"/proc/{pid}/stat")).rpartition(") ")[2][:1]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _send(process: _Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.record["pid"], number)
