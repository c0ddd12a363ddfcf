"""Process that caused a hang, found from the states of all processes. Standard library only.

In synchronous training, one hung process stops all others, because they wait for it in a collective
operation. Therefore the process that does not wait is the likely cause.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

STOPPED = {"T": "stopped by a signal", "t": "stopped by a debugger"}
"""States of /proc/<pid>/stat in which a process does nothing at all (proc(5))."""
MAX_LINES = 8
_FRAME = re.compile(r'^  File "(?P<path>.+)", line (?P<line>\d+) in (?P<name>.+)$')
_OURS, _TORCH = "seqlm/", "torch/"
_ABOVE = re.compile(rf".*(?:/(?={_OURS})|-packages/(?={_TORCH}))")
"""Folders before the part of a path that says something."""
# Around each collective, and below it on the way to C++; they say nothing.
_WRAPPERS = ("torch/distributed/c10d_logger.py", "torch/_ops.py")
_WAITING_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/fsdp/",
)
_WAITING_FUNCTIONS = {
    # DDP and FSDP reduce gradients inside of the backward pass.
    ("torch/autograd/graph.py", "_engine_run_backward"),
    ("torch/distributed/utils.py", "_verify_param_shape_across_processes"),
    ("torch/distributed/utils.py", "_sync_module_states"),
    ("torch/distributed/_state_dict_utils.py", "_broadcast_tensors"),
    ("seqlm/training/processes.py", "to_host"),
    ("torch/cuda/streams.py", "synchronize"),
}


@dataclass(frozen=True)
class Frame:
    path: str
    """Path from ``torch/`` or ``seqlm/`` for their files, otherwise the whole path."""
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.path}:{self.line})"


@dataclass(frozen=True)
class Observed:
    """A process of a hung step, as its node's agent found it."""

    node: str
    rank: int | None
    """None if the process has not reported it."""
    state: str
    """State in /proc/<pid>/stat before the request for stacks; empty if it is unknown."""
    silent_seconds: float
    """Seconds since it last advanced."""
    doing: str
    place: str
    """Innermost frames of torch and of this project in its main thread; empty without stacks."""
    waits: bool
    """Whether that is where a process waits for others."""

    @property
    def name(self) -> str:
        return f"{self.node}, process {'?' if self.rank is None else self.rank}"


@dataclass(frozen=True)
class Blame:
    processes: tuple[Observed, ...] = ()
    nodes: tuple[str, ...] = ()
    """Nodes of these processes, or nodes that reported nothing."""
    why: str = ""


def frames_of(stack: str) -> list[Frame]:
    """Frames of the stack of one thread that ``faulthandler`` has written, the innermost first."""
    found = (_FRAME.match(line) for line in stack.splitlines())
    return [
        Frame(_ABOVE.sub("", match["path"]), int(match["line"]), match["name"]) for match in found if match
    ]


def place_of(frames: Sequence[Frame]) -> str:
    """Return a thread's position: the innermost known frame, and its caller in the project."""
    known = _known(frames)
    if not known:
        return str(frames[0]) if frames else ""
    caller = next((frame for frame in known if frame.path.startswith(_OURS)), None)
    if caller is None or caller is known[0]:
        return str(known[0])
    return f"{known[0]} called by {caller}"


def is_waiting(frames: Sequence[Frame]) -> bool:
    """Whether a thread waits for other processes."""
    innermost = next(iter(_known(frames)), None)
    return innermost is not None and (
        innermost.path.startswith(_WAITING_FILES) or (innermost.path, innermost.name) in _WAITING_FUNCTIONS
    )


def _known(frames: Sequence[Frame]) -> list[Frame]:
    return [
        frame for frame in frames if frame.path.startswith((_OURS, _TORCH)) and frame.path not in _WRAPPERS
    ]


def blame(processes: Sequence[Observed], nodes: Sequence[str]) -> Blame:
    """Say who is likely to blame, with what speaks most for it first.

    Args:
        processes: all that were found.
        nodes: of the step; one of them without a process has not answered.
    """
    if stopped := [process for process in processes if process.state in STOPPED]:
        states = sorted({STOPPED[process.state] for process in stopped})
        return _blamed(stopped, f"it was {' or '.join(states)}")
    if silent := sorted(set(nodes) - {process.node for process in processes}):
        return Blame((), tuple(silent), "its agent did not answer when the others asked for stacks")
    waiting = [process for process in processes if process.waits]
    if waiting and (others := [process for process in processes if not process.waits]):
        return _blamed(others, f"it does not wait for others, as {len(waiting)} of {len(processes)} do")
    return Blame()


def _blamed(processes: Sequence[Observed], why: str) -> Blame:
    return Blame(tuple(processes), tuple(sorted({process.node for process in processes})), why)


def report(processes: Sequence[Observed], found: Blame) -> list[str]:
    """Lines for the job's log."""
    longest = max((process.silent_seconds for process in processes), default=0.0)
    lines = [f"hung: {len(processes)} processes, the longest without an advance for {longest:.0f} s"]
    for process in found.processes[:MAX_LINES]:
        lines.append(
            f"to blame is {process.name}, {found.why}; state {process.state or 'unknown'}, {process.doing}, "
            f"{process.place or 'no stacks came'}"
        )
    if len(found.processes) > MAX_LINES:
        lines.append(f"and {len(found.processes) - MAX_LINES} more on {', '.join(found.nodes)}")
    if not found.processes:
        named = [f"to blame is node {node}: {found.why}" for node in found.nodes[:MAX_LINES]]
        lines += named or ["no process stands out: network or GPU may be the cause"]
    others = Counter(process.place or "no stacks" for process in processes if process not in found.processes)
    lines += [f"{count} in {place}" for place, count in others.most_common(MAX_LINES)]
    return lines
