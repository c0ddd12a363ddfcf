"""Steps of packs, read ahead of the training loop by a background thread."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from .packing import HostPack, PackStream, Position

READ_AHEAD_STEPS = 2


@dataclass(frozen=True)
class StepPacks:
    """Packs of one process in one optimizer step, and totals over all processes."""

    packs: list[HostPack]
    """This process's micro-batches; as many on every process, the last may be padding only."""
    num_proteins: int
    num_residues: int
    num_attended_pairs: int
    num_tokens: int
    """Slots of the step's packs: all packs together, padding included."""
    after: Position
    """Position in the data after the step."""


def step_packs(
    stream: PackStream, position: Position, packs_per_step: int, rank: int, world_size: int
) -> Iterator[StepPacks]:
    """Iterate over optimizer steps from ``position`` on, with the same packs at any world size, in turn."""
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


def read_ahead(steps: Iterator[StepPacks]) -> Generator[StepPacks, None, None]:
    """Iterate over steps while a thread prepares the next ones; errors there are raised here.

    Reading begins with the first step.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
    try:
        waiting = deque(thread.submit(next, steps) for _ in range(READ_AHEAD_STEPS))
        while True:
            waiting.append(thread.submit(next, steps))
            yield waiting.popleft().result()
    finally:
        thread.shutdown(cancel_futures=True)
