"""All-reduce of numbers with a known sum, and its bandwidth."""

import itertools
import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from seqlm.training.processes import Processes

ELEMENT_BYTES = 4
"""Bytes of fp32, the default type of nccl-tests and the type of our gradients."""
PERIOD = 7
"""Period of the numbers within a buffer. It is a prime, so no chunk of a transfer equals its neighbour."""
VERIFIED_AT_ONCE = 1 << 24
"""Elements per check, so that a large buffer needs little additional memory."""
NUM_WARM_UP = 5
"""Rounds that do not count, as in nccl-tests (-w)."""
NUM_ROUNDS = 20
"""Largest number of rounds per size, as in nccl-tests (-n)."""
SECONDS_A_SIZE = 4.0
"""Time per size, which limits the number of long rounds."""


class WrongSum(RuntimeError):
    """An all-reduce returned a wrong sum."""


@dataclass(frozen=True)
class Point:
    """Result for one size of a sweep."""

    size_bytes: int
    seconds: float
    """Median time of a round in the slowest process."""
    num_rounds: int
    num_processes: int
    """Number of processes on all nodes."""

    @property
    def algorithm_gb_s(self) -> float:
        """Size of the buffer divided by the time, in 1e9 bytes/s."""
        return self.size_bytes / self.seconds / 1e9

    @property
    def bus_gb_s(self) -> float:
        """Return the rate of each link of a ring in 1e9 bytes/s, comparable with the hardware's figures.

        Algorithm bandwidth x 2 (n - 1) / n: nccl-tests, doc/PERFORMANCE.md, "AllReduce".
        """
        return self.algorithm_gb_s * 2 * (self.num_processes - 1) / self.num_processes


@dataclass(frozen=True)
class Sweep:
    """Results for all sizes on one set of nodes."""

    num_nodes: int
    num_processes: int
    """Number of processes on all nodes."""
    network: str
    """Name of the network in ``nccl_log.chosen_network``; gloo without GPUs."""
    points: tuple[Point, ...]

    @property
    def scale(self) -> tuple[int, int]:
        """Numbers of nodes and processes."""
        return self.num_nodes, self.num_processes

    @property
    def best(self) -> Point:
        """Size with the highest bus bandwidth."""
        return max(self.points, key=lambda point: point.bus_gb_s)


def new_buffer(size_bytes: int, here: Processes) -> Tensor:
    """Return a buffer on the device of this process, with undefined contents."""
    return torch.empty(size_bytes // ELEMENT_BYTES, dtype=torch.float32, device=here.device)


def verified_all_reduce(buffer: Tensor, here: Processes) -> None:
    """Fill the buffer with this process's numbers, add up those of all processes, and check the sums.

    Element i of process r is r + i mod 7, so the sum over n processes is n (n - 1) / 2 + n (i mod 7). These
    are whole numbers below 2**24, which fp32 represents exactly in any order of addition.

    Raises:
        WrongSum: with the first wrong element, if a sum is wrong.
    """
    size = here.world_size
    assert size * (size - 1) // 2 + size * (PERIOD - 1) < 1 << 24
    for start, part in _parts(buffer):
        part.copy_(_pattern(start, part) + here.rank)
    dist.all_reduce(buffer)
    for start, part in _parts(buffer):
        expected = _pattern(start, part) * size + size * (size - 1) // 2
        if not torch.equal(part, expected):
            place = int((part != expected).nonzero()[0])
            raise WrongSum(
                f"all-reduce of {buffer.numel() * ELEMENT_BYTES} bytes over {size} processes: element "
                f"{start + place} is {float(part[place])}, and must be {float(expected[place])}"
            )


def _parts(buffer: Tensor) -> list[tuple[int, Tensor]]:
    """Return views of parts of the buffer, each with the place of its first element."""
    parts = buffer.split(VERIFIED_AT_ONCE)
    return [(number * VERIFIED_AT_ONCE, part) for number, part in enumerate(parts)]


def _pattern(start: int, part: Tensor) -> Tensor:
    """Return the first process's numbers for a part of the buffer that begins at element ``start``."""
    place = torch.arange(start, start + part.numel(), device=part.device)
    return (place % PERIOD).to(part.dtype)


def measure(buffer: Tensor, here: Processes) -> Point:
    """Time all-reduces of a buffer, and overwrite its contents."""
    buffer.zero_()  # sums of zeros stay numbers
    *_, last_seconds = [_seconds(buffer, here) for _ in range(NUM_WARM_UP)]
    # All processes must run the same number of rounds.
    slowest = _maximum(last_seconds, here)
    num_rounds = max(1, min(NUM_ROUNDS, int(SECONDS_A_SIZE / slowest)))
    seconds = _maximum(statistics.median(_rounds(buffer, num_rounds, here)), here)
    return Point(buffer.numel() * ELEMENT_BYTES, seconds, num_rounds, here.world_size)


def _rounds(buffer: Tensor, num_rounds: int, here: Processes) -> list[float]:
    """Return the seconds of each round. On GPUs, the device's clock measures rounds without a gap."""
    if here.device.type != "cuda":
        return [_seconds(buffer, here) for _ in range(num_rounds)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(num_rounds + 1)]
    events[0].record()
    for event in events[1:]:
        dist.all_reduce(buffer)
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(events)]


def _seconds(buffer: Tensor, here: Processes) -> float:
    """Time one all-reduce with the host's clock."""
    start = time.perf_counter()
    dist.all_reduce(buffer)
    if here.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _maximum(value: float, here: Processes) -> float:
    """Return the largest value of all processes."""
    found = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=here.control)
    return float(found)
