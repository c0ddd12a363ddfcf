"""Steps of packs, read ahead of the training loop by a background thread."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from ..packing import HostPack, PackStream, Position

READ_AHEAD_STEPS = 2
"""Steps that are prepared while the training uses the one before."""


@dataclass(frozen=True)
class StepPacks:
    """Packs of one process in one optimizer step, and totals over all processes."""

    packs: list[HostPack]
    """Micro-batches of this process. Every process has as many; its last one may be padding alone."""
    num_records: int
    num_record_tokens: int
    """Number of tokens of the records, without special tokens and padding."""
    num_attended_pairs: int
    """Sum of the squared segment lengths."""
    num_tokens: int
    """Number of slots in the step's packs, padding included."""
    after: Position
    """Position in the data after the step."""


def step_packs(
    stream: PackStream, position: Position, packs_per_step: int, rank: int, world_size: int
) -> Iterator[StepPacks]:
    """Iterate over optimizer steps from ``position`` on.

    A step has the same packs at any world size; processes take turns at them.
    """
    planned = stream.packs(position)
    num_rounds = -(-packs_per_step // world_size)
    while True:
        step = list(islice(planned, packs_per_step))
        packs = [pack for pack, _ in step]
        _, after = step[-1]
        mine: list[HostPack] = []
        for index in range(rank, num_rounds * world_size, world_size):
            mine.append(stream.load(packs[index] if index < len(packs) else None))
        yield StepPacks(
            packs=mine,
            num_records=sum(len(pack.units) for pack in packs),
            num_record_tokens=sum(pack.num_record_tokens for pack in packs),
            num_attended_pairs=sum(pack.num_attended_pairs for pack in packs),
            num_tokens=packs_per_step * stream.shape.num_tokens,
            after=after,
        )


def read_ahead(steps: Iterator[StepPacks]) -> Generator[StepPacks, None, None]:
    """Iterate over steps while a thread prepares the next ones; its errors are raised here.

    The thread starts when the first step is taken.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
    try:
        waiting = deque(thread.submit(next, steps) for _ in range(READ_AHEAD_STEPS))
        while True:
            waiting.append(thread.submit(next, steps))
            yield waiting.popleft().result()
    finally:
        thread.shutdown(cancel_futures=True)
