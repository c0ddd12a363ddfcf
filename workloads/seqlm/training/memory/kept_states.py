"""Common part of the kinds of states in memory: when one is kept, and the fallback to checkpoints."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqlm.training.checksums import DamagedError
from seqlm.training.processes import Processes
from seqlm.training.whole_file import remove

from .interval import Cost, Interval
from .layout import Layout


class KeptStates(ABC):
    """Writer and reader of the states. Every process calls every method in the same order.

    Args:
        here: this process.
        layout: distribution of the state.
        local_size: number of processes on each node.
        interval: steps between two states.
        own: entries of ``checkpoint.json`` that identify the run; a state with others is not used.
    """

    def __init__(
        self,
        here: Processes,
        layout: Layout,
        local_size: int,
        interval: Interval,
        own: Mapping[str, Any],
    ) -> None:
        self._here = here
        self._layout = layout
        self._local_size = local_size
        self._node = here.rank // local_size
        self._interval = interval
        self._own = {**own, "layout": layout.record()}
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
            target=self._write_behind, args=(step, content), name="state in memory", daemon=True
        )
        self._writing.start()
        self._blocked_seconds = time.monotonic() - began

    def load(self, step: int, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Read a state into ``tensors``, and return its ``checkpoint.json``.

        Raises:
            DamagedError: on every process, if a checksum is wrong, a piece lacks a tensor, or a node has too
                little memory for the pieces that it lacks.
        """
        problem = ""
        source = ""
        document: dict[str, Any] = {}
        try:
            source = self._bring(step)
        except (OSError, RuntimeError) as error:
            problem = f"the state in memory of step {step} cannot be copied: {error}"
        except DamagedError as error:
            problem = error.what
        self._raise_first(problem)
        try:
            names, document = self._read(step, tensors)
            lacking = sorted(tensors.keys() - names)
            if lacking:
                problem = f"the state in memory of step {step} lacks {lacking[0]}"
        except OSError as error:
            problem = f"the state in memory of step {step} cannot be read: {error}"
        except DamagedError as error:
            problem = error.what
        self._raise_first(problem)
        self._written = step
        self._delete(self._outdated())
        self._messages.append(f"continues from the state in memory of step {step}{source}")
        return self._here.from_first(document)

    def forget(self) -> None:
        """Delete all states on all nodes, because none of them will be read."""
        self._join()
        self._here.sum_on_host(0.0)  # no process writes any more
        self._delete_all()

    @abstractmethod
    def newest(self) -> int | None:
        """Return the step of the newest state that is complete; None without one."""

    @property
    @abstractmethod
    def _memory_factor(self) -> int:
        """Bytes of memory that a node needs per byte of the pieces that its processes write."""

    @abstractmethod
    def _available_bytes(self) -> int:
        """Return the memory of this node that is left for states."""

    @abstractmethod
    def _write(self, step: int, document: Mapping[str, Any]) -> None:
        """Write what is staged, in the background.

        Raises:
            DamagedError: if a copy differs from its original.
            OSError: if it cannot be written.
            RuntimeError: if another process is gone.
        """

    @abstractmethod
    def _bring(self, step: int) -> str:
        """Bring what this process reads of a state to this node, and return where it was.

        Raises:
            DamagedError: if a checksum is wrong, or the node has too little memory.
            OSError: if a piece cannot be read or written.
            RuntimeError: if another process is gone.
        """

    @abstractmethod
    def _read(self, step: int, tensors: Mapping[str, Tensor]) -> tuple[set[str], dict[str, Any]]:
        """Read a state into ``tensors``; return the names that it has, and its ``checkpoint.json``.

        Raises:
            DamagedError: if it does not fit the tensors, or a checksum is wrong.
            OSError: if a piece cannot be read.
        """

    @abstractmethod
    def _outdated(self) -> list[Path]:
        """Return the folders of states that this process deletes: all but the last one written or read."""

    @abstractmethod
    def _delete_all(self) -> None:
        """Delete all states."""

    def _mine(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sizes = {name: value.nbytes for name, value in tensors.items()}
        return {name: tensors[name] for name in self._layout.part_of(self._here.rank, sizes)}

    def _turn_off_if_short(self, num_bytes: int) -> None:
        """Turn states in memory off if a node has too little memory.

        Args:
            num_bytes: bytes of this process's piece.
        """
        needed = num_bytes * self._memory_factor
        available = self._available_bytes()
        found = self._here.gather({self._here.rank: (needed, available)})
        for node in range(self._here.world_size // self._local_size):
            first = node * self._local_size
            on_node = [found[rank] for rank in range(first, first + self._local_size)]
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

    def _write_behind(self, step: int, document: Mapping[str, Any]) -> None:
        """Write this process's piece in a thread; a problem is reported when the next state is due."""
        began = time.monotonic()
        try:
            self._write(step, document)
        except (OSError, RuntimeError, DamagedError) as error:
            self._problem = f"process {self._here.rank}: {error}"
        self._background_seconds = time.monotonic() - began

    @staticmethod
    def _delete(folders: Sequence[Path]) -> None:
        for folder in folders:
            remove(folder)

    def _join(self) -> None:
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def _complete_write(self) -> None:
        """Wait for the write under way on all processes, and delete older states once it is complete."""
        self._join()
        # After the exchange, another process of the node may have begun to write the next state.
        outdated = self._outdated() if self._written is not None else []
        problems = self._here.gather({self._here.rank: self._problem})
        first_problem = next(filter(None, problems.values()), "")
        if first_problem:
            self._fall_back(first_problem)
        else:
            self._delete(outdated)

    def _raise_first(self, problem: str) -> None:
        """Raise the problem of the first process that has one, on every process."""
        problems = self._here.gather({self._here.rank: problem})
        first_problem = next(filter(None, problems.values()), "")
        if first_problem:
            raise DamagedError(first_problem)
