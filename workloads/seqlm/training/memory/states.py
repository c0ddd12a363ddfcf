"""States of a run in the memory of its nodes, from which a start of the same job continues.

They are no checkpoints: they are lost with the job's memory, and nothing outside the job reads them. A start
with the same number of nodes and processes uses the newest one that is complete on all nodes together.
"""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from seqlm.training.checksums import DamagedError, read_document
from seqlm.training.config import RunConfig
from seqlm.training.processes import Processes
from seqlm.training.whole_file import remove

from .available import available_bytes
from .interval import Cost, Interval
from .job_folder import MEMORY_FOLDER, STEP_PATTERN
from .layout import Layout
from .pieces import STATE_FILE, Message, check_piece, read_piece, transfer, write_piece

TRANSFER_TIMEOUT = timedelta(minutes=5)
"""Longest wait for a message of another node."""
LOCAL_SIZE = "LOCAL_WORLD_SIZE"
"""Variable of torchrun's environment with the number of this node's processes."""


@dataclass(frozen=True)
class _Stored:
    """Pieces of one state on one node."""

    sizes: Mapping[str, int]
    """Bytes of the pieces by name."""


class MemoryStates:
    """Writer and reader of the states. Every process calls every method in the same order.

    Args:
        folder: folder of the job in this node's memory.
        here: this process.
        layout: distribution of the state.
        interval: steps between two states.
        own: entries of ``checkpoint.json`` that identify the run; a state with others is not used.
    """

    def __init__(
        self,
        folder: Path,
        here: Processes,
        layout: Layout,
        interval: Interval,
        own: Mapping[str, Any],
    ) -> None:
        self._folder = folder
        self._here = here
        self._layout = layout
        self._node = here.rank // layout.local_size
        self._interval = interval
        self._own = {**own, "layout": layout.record()}
        self._group = dist.new_group(backend="gloo", timeout=TRANSFER_TIMEOUT)
        self._staged: dict[str, Tensor] = {}
        self._writing: threading.Thread | None = None
        self._written: int | None = None
        """Step of the last state whose writing began."""
        self._problem = ""
        """Problem of this process's last write; empty if there was none."""
        self._blocked_seconds = 0.0
        self._background_seconds = 0.0
        self._is_off = False
        self._messages: list[str] = []

    @property
    def is_off(self) -> bool:
        """Whether no more states are kept."""
        return self._is_off

    def is_due(self, step: int) -> bool:
        """Return whether a state is to be kept after this step."""
        return not self._is_off and self._interval.is_due(step)

    def take_messages(self) -> list[str]:
        """Return what has happened since the last call, for the record of the run."""
        messages = self._messages
        self._messages = []
        return messages

    def save(self, step: int, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
        """Copy the state to the host, and start to write it. Waits for the write of the last state.

        Args:
            step: number of steps that the run has made.
            tensors: this process's tensors of the state.
            document: further entries of ``checkpoint.json``, with the progress of the run.
        """
        if self._is_off:
            return
        began = time.monotonic()
        mine = self._mine(tensors)
        if not self._staged:
            self._turn_off_if_short(sum(value.nbytes for value in mine.values()))
        if not self._is_off:
            self._complete_write()
        if self._is_off:
            return
        cost = Cost(self._blocked_seconds, self._background_seconds)
        self._messages += self._interval.measured(step, cost, began, self._here)
        if self._interval.is_never:
            self._turn_off()
            return
        self._stage(mine)
        self._written = step
        content = {"step": step, **document, **self._own}
        self._writing = threading.Thread(
            target=self._write, args=(step, content), name="state in memory", daemon=True
        )
        self._writing.start()
        self._blocked_seconds = time.monotonic() - began

    def newest(self) -> int | None:
        """Return the step of the newest state that is complete on all nodes together; None without one."""
        stored = self._stored()
        complete = [step for step in self._steps(stored) if self._is_complete(stored, step)]
        return max(complete, default=None)

    def load(self, step: int, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Read a state into ``tensors``, and return its ``checkpoint.json``.

        Pieces that a node lacks are copied from another one.

        Raises:
            DamagedError: on every process, if a checksum is wrong, a piece lacks a tensor, or a node has too
                little memory for the pieces that it lacks.
        """
        problem = ""
        document: dict[str, Any] = {}
        try:
            copied = self._fetch(step)
            check_piece(self._path(step, self._layout.piece_of(self._here.rank)))
        except (OSError, RuntimeError) as error:
            problem = f"the state in memory of step {step} cannot be copied: {error}"
        except DamagedError as error:
            problem = error.what
        self._raise_first(problem)
        names: set[str] = set()
        try:
            for piece in self._layout.pieces_read_by(self._here.rank):
                names |= read_piece(self._path(step, piece), tensors)
            lacking = sorted(tensors.keys() - names)
            if lacking:
                problem = f"the state in memory of step {step} lacks {lacking[0]}"
            document = read_document(self._path(step, self._layout.piece_of(self._here.rank)))
        except DamagedError as error:
            problem = error.what
        self._raise_first(problem)
        self._written = step
        self._delete_others()
        source = f"; copied from other nodes: {copied} pieces" if copied else ""
        self._messages.append(f"continues from the state in memory of step {step}{source}")
        return self._here.from_first(document)

    def forget(self) -> None:
        """Delete all states on all nodes, because none of them will be read."""
        self._join()
        self._here.sum_on_host(0.0)  # no process writes any more
        if self._is_leader:
            for path in self._folder.glob(STEP_PATTERN):
                remove(path)

    @property
    def _is_leader(self) -> bool:
        """Whether this is the first process of its node."""
        return self._here.rank % self._layout.local_size == 0

    def _mine(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sizes = {name: value.nbytes for name, value in tensors.items()}
        return {name: tensors[name] for name in self._layout.part_of(self._here.rank, sizes)}

    def _turn_off_if_short(self, num_bytes: int) -> None:
        """Turn states in memory off if a node has too little memory.

        Args:
            num_bytes: bytes of this process's piece.
        """
        needed = num_bytes * self._layout.memory_factor
        available = available_bytes(self._folder)
        found = self._here.gather({self._here.rank: (needed, available)})
        for node in range(self._layout.num_nodes):
            on_node = [found[rank] for rank in self._layout.ranks_on(node)]
            total = sum(needed for needed, _ in on_node)
            least = min(available for _, available in on_node)
            if total > least:
                self._fall_back(
                    f"node {node} has {least / 1e9:.2f} GB of memory for them, and they take "
                    f"{total / 1e9:.2f} GB"
                )
                return

    def _fall_back(self, problem: str) -> None:
        self._messages.append(
            f"warning: no states are kept in memory any more: {problem}. A restart uses checkpoints; "
            "train.memory_checkpoint_steps=0 keeps no states in memory"
        )
        self._turn_off()

    def _turn_off(self) -> None:
        self._is_off = True
        self._staged.clear()
        self.forget()

    def _stage(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy tensors to the host, into the same memory each time."""
        is_cuda = self._here.device.type == "cuda"
        for name, value in tensors.items():
            if name not in self._staged:
                self._staged[name] = torch.empty(value.shape, dtype=value.dtype, pin_memory=is_cuda)
            self._staged[name].copy_(value, non_blocking=is_cuda)
        if is_cuda:
            torch.cuda.current_stream().synchronize()

    def _write(self, step: int, document: Mapping[str, Any]) -> None:
        """Write this process's piece, and send it to the next node if no other node writes it."""
        began = time.monotonic()
        rank = self._here.rank
        layout = self._layout
        folder = self._path(step, layout.piece_of(rank))
        try:
            write_piece(folder, self._staged, document)
            if layout.copies:
                sender = layout.sender_to(rank)
                received = self._path(step, layout.piece_of(sender))
                transfer(
                    Message(folder, layout.receiver_of(rank)),
                    Message(received, sender),
                    self._group,
                )
        except (OSError, RuntimeError, DamagedError) as error:
            self._problem = f"process {rank}: {error}"
        self._background_seconds = time.monotonic() - began

    def _join(self) -> None:
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def _complete_write(self) -> None:
        """Wait for the write under way on all processes, and delete older states once it is complete."""
        self._join()
        problems = self._here.gather({self._here.rank: self._problem})
        first_problem = next(filter(None, problems.values()), "")
        if first_problem:
            self._fall_back(first_problem)
        elif self._written is not None:
            self._delete_others()

    def _delete_others(self) -> None:
        """Delete all states on this node but the last one that was written or read."""
        assert self._written is not None
        newest = self._path(self._written)
        for path in self._folder.glob(STEP_PATTERN):
            if path != newest and self._is_leader:
                remove(path)

    def _stored(self) -> dict[int, dict[int, _Stored]]:
        """Return the pieces that can be used, by node and step."""
        mine: dict[int, _Stored] = {}
        if self._is_leader:
            for path in self._folder.glob(STEP_PATTERN):
                sizes = {piece.name: self._size_of(piece) for piece in path.glob("shard-*")}
                usable = {name: size for name, size in sizes.items() if size is not None}
                mine[int(path.name.removeprefix("step-"))] = _Stored(usable)
        return self._here.gather({self._node: mine} if self._is_leader else {})

    def _size_of(self, piece: Path) -> int | None:
        """Return the bytes of a complete piece of this run and layout; None for anything else."""
        if "." in piece.name:
            return None  # it was being written
        try:
            document = read_document(piece)
            size = (piece / STATE_FILE).stat().st_size
        except (DamagedError, OSError):
            return None
        is_own = all(document.get(name) == value for name, value in self._own.items())
        return size if is_own else None

    def _steps(self, stored: Mapping[int, Mapping[int, _Stored]]) -> set[int]:
        return {step for of_node in stored.values() for step in of_node}

    def _is_complete(self, stored: Mapping[int, Mapping[int, _Stored]], step: int) -> bool:
        found = {
            name for of_node in stored.values() if step in of_node for name in of_node[step].sizes
        }
        return all(self._layout.piece_of(rank) in found for rank in range(self._layout.world_size))

    def _fetch(self, step: int) -> int:
        """Copy the pieces that nodes lack from other nodes; return their number.

        Raises:
            DamagedError: on every process, if a node has too little memory.
            OSError: if a piece cannot be read or written.
            RuntimeError: if another process is gone.
        """
        stored = self._stored()
        pieces = {node: stored[node].get(step, _Stored({})).sizes for node in stored}
        available = self._here.gather(
            {self._node: available_bytes(self._folder)} if self._is_leader else {}
        )
        count = 0
        for node in range(self._layout.num_nodes):
            lacking = [
                name for name in self._layout.pieces_read_on(node) if name not in pieces[node]
            ]
            sources = {
                name: next(other for other, sizes in pieces.items() if name in sizes)
                for name in lacking
            }
            needed = sum(pieces[other][name] for name, other in sources.items())
            if needed > available[node]:
                raise DamagedError(
                    f"node {node} has {available[node] / 1e9:.2f} GB of memory for a state that takes "
                    f"{needed / 1e9:.2f} GB"
                )
            for name, other in sources.items():
                sender = self._layout.ranks_on(other)[count % self._layout.local_size]
                receiver = self._layout.ranks_on(node)[count % self._layout.local_size]
                count += 1
                path = self._path(step, name)
                if self._here.rank == sender:
                    transfer(Message(path, receiver), None, self._group)
                elif self._here.rank == receiver:
                    transfer(None, Message(path, sender), self._group)
        # The processes of a node read what others of them have received.
        self._here.sum_on_host(0.0)
        return count

    def _raise_first(self, problem: str) -> None:
        """Raise the problem of the first process that has one, on every process."""
        problems = self._here.gather({self._here.rank: problem})
        first_problem = next(filter(None, problems.values()), "")
        if first_problem:
            raise DamagedError(first_problem)

    def _path(self, step: int, piece: str = "") -> Path:
        return self._folder / f"step-{step:08d}" / piece


def states_in_memory(
    config: RunConfig, here: Processes, identity: Mapping[str, Any]
) -> MemoryStates | None:
    """Return the states that a run keeps in the memory of its nodes; None if it keeps none.

    Args:
        config: configuration of the run.
        here: this process; every process calls this.
        identity: values that identify the run.
    """
    steps = config.train.memory_checkpoint_steps
    folder = os.environ.get(MEMORY_FOLDER, "")
    local_size = int(os.environ.get(LOCAL_SIZE, here.world_size))
    places = here.gather({here.rank: (bool(folder), local_size)})
    has_folders = all(has_folder for has_folder, _ in places.values())
    is_regular = len({size for _, size in places.values()}) == 1
    shard_size = 1
    if config.parallel.mode == "fsdp":
        shard_size = config.parallel.shard_size or here.world_size
    layout = Layout(here.world_size, local_size, shard_size)
    if steps == 0 or (steps is None and (not has_folders or local_size == here.world_size)):
        return None
    problem = ""
    if not has_folders:
        problem = "the run is no job of a cluster, whose launcher creates a folder in memory"
    elif here.runtime.checkpoints_on_host:
        problem = "this device's states are copied to the host of the first process alone"
    elif not is_regular:
        problem = "the nodes have different numbers of processes"
    else:
        problem = layout.problem
    if problem:
        if here.is_first:
            print(
                f"warning: train.memory_checkpoint_steps: no states are kept in memory: {problem}. A restart "
                "uses checkpoints",
                flush=True,
            )
        return None
    if layout.num_nodes == 1 and here.is_first:
        print(
            "warning: train.memory_checkpoint_steps: the job has one node, so states in memory have no copy "
            "on another one and are lost with the node",
            flush=True,
        )
    interval = Interval(steps, config.train.save_every_steps)
    own = {"run": str(config.run_dir.absolute()), "identity": dict(identity)}
    return MemoryStates(Path(folder), here, layout, interval, own)
