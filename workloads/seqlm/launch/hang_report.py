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
"""Largest number of processes, nodes or places that a report lists."""
_FRAME = re.compile(r'^  File "(?P<path>.+)", line (?P<line>\d+) in (?P<name>.+)$')
_OURS = "seqlm/"
_TORCH = "torch/"
_ABOVE = re.compile(rf".*(?:/(?={_OURS})|-packages/(?={_TORCH}))")
"""Folders of a path before ``seqlm/`` or ``torch/``."""
_WRAPPERS = ("torch/distributed/c10d_logger.py", "torch/_ops.py")
"""Files of the frames around each collective and below it, on the way to C++. Reports leave them out."""
_WAITING_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/fsdp/",
)
"""Files and folders in which a process waits for others."""
_WAITING_FUNCTIONS = {
    # DDP and FSDP reduce gradients in the backward pass.
    ("torch/autograd/graph.py", "_engine_run_backward"),
    ("torch/distributed/utils.py", "_verify_param_shape_across_processes"),
    ("torch/distributed/utils.py", "_sync_module_states"),
    ("torch/distributed/_state_dict_utils.py", "_broadcast_tensors"),
    ("seqlm/training/processes.py", "to_host"),
    ("torch/cuda/streams.py", "synchronize"),
}
"""Further functions in which a process waits for others, with their files."""


@dataclass(frozen=True)
class Frame:
    """Function call on the stack of a thread."""

    path: str
    """Path from ``torch/`` or ``seqlm/`` for their files, otherwise the whole path."""
    line: int
    name: str
    """Name of the function."""

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
    """Phase that it reported last."""
    place: str
    """Innermost frames of torch and of this project in its main thread; empty without stacks."""
    waits: bool
    """Whether a process waits for others at that place."""

    @property
    def name(self) -> str:
        return f"{self.node}, process {'?' if self.rank is None else self.rank}"


@dataclass(frozen=True)
class Blame:
    """Likely cause of a hang; empty if nothing stands out."""

    processes: tuple[Observed, ...] = ()
    nodes: tuple[str, ...] = ()
    """Nodes of these processes, or nodes that reported nothing."""
    why: str = ""
    """Evidence against them, as the end of a sentence."""


def frames_of(stack: str) -> list[Frame]:
    """Parse the stack of one thread that ``faulthandler`` has written. The innermost frame is the first."""
    matches = (_FRAME.match(line) for line in stack.splitlines())
    return [
        Frame(path=_ABOVE.sub("", match["path"]), line=int(match["line"]), name=match["name"])
        for match in matches
        if match
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
    """Return whether a thread waits for other processes."""
    known = _known(frames)
    if not known:
        return False
    innermost = known[0]
    in_waiting_file = innermost.path.startswith(_WAITING_FILES)
    return in_waiting_file or (innermost.path, innermost.name) in _WAITING_FUNCTIONS


def _known(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames of this project and of torch, without wrappers."""
    return [
        frame
        for frame in frames
        if frame.path.startswith((_OURS, _TORCH)) and frame.path not in _WRAPPERS
    ]


def blame(processes: Sequence[Observed], nodes: Sequence[str]) -> Blame:
    """Find the likely cause of a hang. The strongest evidence counts: a stopped process, then a silent node.

    Args:
        processes: all processes that were found.
        nodes: nodes of the step. If a node has no process here, its agent has not answered.
    """
    stopped = [process for process in processes if process.state in STOPPED]
    if stopped:
        states = sorted({STOPPED[process.state] for process in stopped})
        return _blamed(stopped, f"it was {' or '.join(states)}")
    silent = sorted(set(nodes) - {process.node for process in processes})
    if silent:
        return Blame((), tuple(silent), "its agent did not answer when the others asked for stacks")
    waiting = [process for process in processes if process.waits]
    others = [process for process in processes if not process.waits]
    if waiting and others:
        return _blamed(
            others, f"it does not wait for others, as {len(waiting)} of {len(processes)} do"
        )
    return Blame()


def _blamed(processes: Sequence[Observed], why: str) -> Blame:
    nodes = sorted({process.node for process in processes})
    return Blame(tuple(processes), tuple(nodes), why)


def report(processes: Sequence[Observed], found: Blame) -> list[str]:
    """Return the lines about a hang for the job's log.

    Args:
        processes: all processes that were found.
        found: likely cause.
    """
    longest = max((process.silent_seconds for process in processes), default=0.0)
    lines = [
        f"hung: {len(processes)} processes, the longest without an advance for {longest:.0f} s"
    ]
    for process in found.processes[:MAX_LINES]:
        lines.append(
            f"to blame is {process.name}, {found.why}; state {process.state or 'unknown'}, {process.doing}, "
            f"{process.place or 'no stacks came'}"
        )
    if len(found.processes) > MAX_LINES:
        lines.append(f"and {len(found.processes) - MAX_LINES} more on {', '.join(found.nodes)}")
    if not found.processes:
        lines += [f"to blame is node {node}: {found.why}" for node in found.nodes[:MAX_LINES]]
        if not found.nodes:
            lines.append("no process stands out: network or GPU may be the cause")
    others = Counter(
        process.place or "no stacks" for process in processes if process not in found.processes
    )
    lines += [f"{count} in {place}" for place, count in others.most_common(MAX_LINES)]
    return lines
