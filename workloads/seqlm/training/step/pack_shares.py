"""Shares of the processes in the packs of a step: equal ones, or by the speed of each device.

A step has the same packs with any shares, and its loss is a mean over all of its targets. The shares decide
which process computes a pack, and so only the order in which sums are formed: a resumed run is equal bit for
bit if its shares are the same. Speeds are therefore measured once for each kind of device, and stay in the
folder of the run.
"""

import heapq
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import Any

from ..processes import Processes
from ..whole_file import write_whole

SPEEDS_FILE = "device-speeds.json"
"""File in the folder of a run, with the seconds of a pack by the name of the device."""
_TOKENS = "tokens_per_pack"
_SECONDS = "seconds_per_pack"


def even_shares(packs_per_step: int, world_size: int) -> tuple[int, ...]:
    """Return as many packs for every process. The last round may have fewer packs than processes."""
    return (math.ceil(packs_per_step / world_size),) * world_size


def shares_by_speed(
    packs_per_step: int, seconds: Sequence[float], group_size: int = 1
) -> tuple[int, ...]:
    """Return the number of packs of each process with which a step is over first.

    Each pack goes to the processes that would be done with it first, of equal ones to the first. All have
    one, because each contributes to the gradients.

    Args:
        packs_per_step: number of packs of a step.
        seconds: time of a pack on each process.
        group_size: number of consecutive processes that pass packs together, and so have as many.
    """
    slowest = [
        max(seconds[first : first + group_size]) for first in range(0, len(seconds), group_size)
    ]
    num_rounds = math.ceil(packs_per_step / group_size)
    if num_rounds <= len(slowest):
        return even_shares(packs_per_step, len(seconds))
    shares = [1] * len(slowest)
    ends = [(2 * time, group) for group, time in enumerate(slowest)]
    heapq.heapify(ends)
    for _ in range(num_rounds - len(slowest)):
        end, group = ends[0]
        shares[group] += 1
        heapq.heapreplace(ends, (end + slowest[group], group))
    return tuple(share for share in shares for _ in range(group_size))


def pack_numbers(shares: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the numbers of a process's packs in the step.

    In each round the processes that still have packs to come take one each, in their order.
    """
    numbers = []
    start = 0
    for turn in range(shares[rank]):
        takers = [process for process, share in enumerate(shares) if share > turn]
        numbers.append(start + takers.index(rank))
        start += len(takers)
    return tuple(numbers)


def device_seconds(
    run_dir: Path,
    tokens_per_pack: int,
    kinds: Sequence[str],
    here: Processes,
    measure: Callable[[], float],
) -> list[float]:
    """Return the time of a pack on each process, from the folder of the run or else measured.

    Processes of one kind have the same time, so that chance does not tell them apart. Every process calls
    this.

    Args:
        run_dir: folder of the run.
        tokens_per_pack: length of a pack.
        kinds: name of the device of each process.
        here: this process.
        measure: function that measures the time of a pack on this process. All processes call it or none.

    Raises:
        OSError: on every process, if the times cannot be written.
    """
    file = run_dir / SPEEDS_FILE
    known = here.from_first(_read(file, tokens_per_pack) if here.is_first else {})
    if not known.keys() >= set(kinds):
        of_kind: dict[str, list[float]] = defaultdict(list)
        measured = here.gather({here.rank: measure()})
        for process, kind in enumerate(kinds):
            of_kind[kind].append(measured[process])
        known = {kind: median_low(values) for kind, values in of_kind.items()}
        here.first_does(partial(_write, file, tokens_per_pack, known))
    return [known[kind] for kind in kinds]


def _read(file: Path, tokens_per_pack: int) -> dict[str, float]:
    """Return the known times; empty if the file is missing, damaged, or about packs of another length."""
    content: Any = None
    with suppress(OSError, ValueError):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get(_TOKENS) != tokens_per_pack:
        return {}
    seconds = content.get(_SECONDS)
    if not isinstance(seconds, dict):
        return {}
    return {
        kind: float(value)
        for kind, value in seconds.items()
        if isinstance(value, int | float) and 0 < value < math.inf
    }


def _write(file: Path, tokens_per_pack: int, seconds: Mapping[str, float]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {_TOKENS: tokens_per_pack, _SECONDS: seconds}
    write_whole(file, json.dumps(content, indent=2) + "\n")


def shares_text(shares: Sequence[int], kinds: Sequence[str]) -> str:
    """Return the packs of a process on each kind of device, as text."""
    found: dict[str, set[int]] = defaultdict(set)
    for share, kind in zip(shares, kinds, strict=True):
        found[kind].add(share)
    parts = [
        f"{' or '.join(map(str, sorted(numbers)))} on {kind}" for kind, numbers in found.items()
    ]
    return ", ".join(parts)
