"""Steps of packs, read ahead of the training loop by a background thread, one pack at a time."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from ..packing import HostPack, PackRange, PackStream, PlannedPack, Position
from .pack_shares import even_shares, pack_numbers
from .staging import AnyPack

READ_AHEAD_STEPS = 2
"""Steps whose packs are read while the training uses the one before."""


@dataclass
class StepPacks:
    """Packs of one process in one optimizer step, and totals over all processes."""

    packs: list[AnyPack]
    """Micro-batches of this process. With equal shares, its last one may be padding alone."""
    num_records: int
    num_record_tokens: int
    """Number of tokens of the records, without special tokens and padding."""
    num_attended_pairs: int
    """Sum of the squared segment lengths."""
    num_tokens: int
    """Number of slots in the step's packs, padding included."""
    after: Position
    """Position in the data after the step."""
    following: "StepPacks | None" = field(default=None, repr=False, compare=False)
    """Next step, once it is being read. Its packs then appear in ``packs`` one by one."""
    passed: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    """Function that reports the pass of a pack, so that the reader reads another one."""
    numbers: tuple[int, ...] = ()
    """Number of each of this process's packs in the step."""


class Steps(Iterator[StepPacks]):
    """Iterator over optimizer steps from a position on.

    A step has the same packs at any world size; processes take turns at them.

    Args:
        stream: packs of the split.
        position: position of the first step.
        packs_per_step: number of packs of a step, of all processes together.
        rank: number of this process.
        world_size: number of processes.
        stage: function that each pack is passed through when it is read; None leaves it on the host.
        shares: number of packs of each process; None gives all as many.
    """

    def __init__(
        self,
        stream: PackStream,
        position: Position,
        packs_per_step: int,
        rank: int,
        world_size: int,
        stage: Callable[[HostPack], AnyPack] | None = None,
        shares: Sequence[int] | None = None,
    ) -> None:
        self._stream = stream
        self._packs_per_step = packs_per_step
        self._stage = stage
        self._numbers = pack_numbers(shares or even_shares(packs_per_step, world_size), rank)
        self.num_packs = len(self._numbers)
        """Number of packs of a step that this process has."""
        self.growing = self._growing(position)
        """Iterator that returns after each pack that is read, with the step that the pack belongs to."""

    def __next__(self) -> StepPacks:
        while True:
            step = next(self.growing)
            if len(step.packs) == self.num_packs:
                return step

    def _growing(self, position: Position) -> Iterator[StepPacks]:
        previous: StepPacks | None = None
        for ranges in _by_step(self._stream.ranges(position), self._packs_per_step):
            last = ranges[-1]
            step = StepPacks(
                packs=[],
                num_records=sum(one.num_records for one in ranges),
                num_record_tokens=sum(one.num_record_tokens for one in ranges),
                num_attended_pairs=sum(one.num_attended_pairs for one in ranges),
                num_tokens=self._packs_per_step * self._stream.shape.num_tokens,
                after=last.position_after(last.stop - 1),
                numbers=self._numbers,
            )
            if previous is not None:
                previous.following = step
            previous = step
            for number in self._numbers:
                planned = self._pack_at(ranges, number)
                host = self._stream.load(planned)
                step.packs.append(host if self._stage is None else self._stage(host))
                yield step

    def _pack_at(self, ranges: Sequence[PackRange], number: int) -> PlannedPack | None:
        """Return a pack of a step by its number, or None beyond the last one."""
        for one in ranges:
            if number < len(one):
                return self._stream.pack(one.block, one.first + number)
            number -= len(one)
        return None


def _by_step(ranges: Iterator[PackRange], packs_per_step: int) -> Iterator[list[PackRange]]:
    """Yield the packs of each step."""
    step: list[PackRange] = []
    missing = packs_per_step
    for left in ranges:
        while left:
            taken, left = left.split_at(missing)
            step.append(taken)
            missing -= len(taken)
            if not missing:
                yield step
                step = []
                missing = packs_per_step


def step_packs(
    stream: PackStream, position: Position, packs_per_step: int, rank: int, world_size: int
) -> Steps:
    """Return an iterator over optimizer steps from ``position`` on, whose packs stay on the host."""
    return Steps(stream, position, packs_per_step, rank, world_size)


def read_ahead(steps: Steps) -> Generator[StepPacks, None, None]:
    """Iterate over steps while a thread reads the packs of the next ones; its errors are raised here.

    The thread starts when the first step is taken.
    """
    with closing(_Reader(steps)) as reader:
        while True:
            yield reader.take()


class _Reader:
    """Thread that reads packs, and the steps that it has read.

    It reads a pack for each pack that is used, so that its work is spread over the step: beside a burst of
    it, the thread that launches the training's operations would wait for the interpreter's lock.

    Args:
        steps: steps to read.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._whole: deque[StepPacks] = deque()
        self._error: BaseException | None = None
        self._is_closed = False
        self._num_taken = 0
        self._num_passed = 0
        """Packs of the step taken last that are used."""
        self._num_read = 0
        self._thread = threading.Thread(target=self._read, name="read-ahead", daemon=True)
        self._thread.start()

    def take(self) -> StepPacks:
        """Return the next step; wait until all of its packs are read."""
        with self._changed:
            self._num_taken += 1
            self._num_passed = 0
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._whole or self._error is not None)
            if self._whole:
                step = self._whole.popleft()
                number = self._num_taken
                step.passed = lambda: self._pack_passed(number)
                return step
        assert self._error is not None  # the thread ends with an error, or waits
        raise self._error

    def close(self) -> None:
        """End the thread, which may still read one pack."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _pack_passed(self, number: int) -> None:
        """Let the thread read another pack, if the step with this number is the one taken last."""
        with self._changed:
            if number == self._num_taken:
                self._num_passed += 1
                self._changed.notify_all()

    def _may_read(self) -> bool:
        """Return whether the packs that are read and not used leave room for another one."""
        per_step = self._steps.num_packs
        num_steps = max(1, self._num_taken) + READ_AHEAD_STEPS
        num_passed = min(self._num_passed, per_step)
        return self._num_read < num_steps * per_step + num_passed

    def _read(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed or self._may_read())
                    if self._is_closed:
                        return
                step = next(self._steps.growing)
                with self._changed:
                    self._num_read += 1
                    if len(step.packs) == self._steps.num_packs:
                        self._whole.append(step)
                        self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
