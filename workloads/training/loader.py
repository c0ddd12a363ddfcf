"""Steps of packs, read ahead of the training loop by a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from .packing import HostPack, PackStream, Position

READ_AHEAD_STEPS = 2


@dataclass(frozen=True)
class StepPacks:
    """What one process trains on in one optimizer step, and what all of them do."""

    packs: list[HostPack]
    """This process's micro-batches; as many on every process, the last may be padding only."""
    num_proteins: int
    num_residues: int
    num_attended_pairs: int
    num_tokens: int
    """Slots of the step's packs: all packs together, padding included."""
    after: Position
    """Where the data stands once the step is done."""


def step_packs(
    stream: PackStream, position: Position, packs_per_step: int, rank: int, world_size: int
) -> Iterator[StepPacks]:
    """Every optimizer step from ``position`` on: the same packs at any world size, dealt out in turn."""
    planned = stream.packs(position)
    while True:
        step = list(islice(planned, packs_per_step))
        packs = [pack for pack, _ in step]
        rounds = -(-packs_per_step // world_size)
        mine = [index * world_size + rank for index in range(rounds)]
        yield StepPacks(
            packs=[stream.load(packs[index] if index < len(packs) else None) for index in mine],
            num_proteins=sum(len(pack.units) for pack in packs),
            num_residues=sum(pack.num_residues for pack in packs),
            num_attended_pairs=sum(pack.num_attended_pairs for pack in packs),
            num_tokens=packs_per_step * stream.shape.num_tokens,
            after=step[-1][1],
        )


class ReadAhead:
    """Iterate over steps while a thread prepares the next ones; errors there are raised here."""

    def __init__(self, steps: Iterator[StepPacks]) -> None:
        self._queue: queue.Queue[StepPacks | BaseException] = queue.Queue(READ_AHEAD_STEPS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(steps,), name="read-ahead", daemon=True)
        self._thread.start()

    def _fill(self, steps: Iterator[StepPacks]) -> None:
        try:
            for step in steps:
                self._put(step)
                if self._stopped.is_set():
                    return
        except BaseException as error:
            self._put(error)

    def _put(self, item: StepPacks | BaseException) -> None:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

    def __iter__(self) -> Iterator[StepPacks]:
        while True:
            item = self._queue.get()
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
