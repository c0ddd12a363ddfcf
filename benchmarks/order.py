"""Order of the cases of an acceptance run, the cases that fit its time, and what runs side by side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.case import Case


class Priority(NamedTuple):
    """Cases that come before all that follow in the table."""

    cases: str
    """Name of a case, or its first parts: the stage, or the stage and the size."""
    reason: str

    def includes(self, case: Case) -> bool:
        return f"{case.id}/".startswith(f"{self.cases}/")


ORDER = (
    Priority("parity", "Times of wrong results are worth nothing. Tests run beside the warm-ups."),
    Priority("hygiene", "Waits, recompilation and leaks explain slow cases. They run there, too."),
    Priority("speed/8M/ours/tokens_per_pack=65536", "The published figure that changes most."),
    Priority("speed/650M/ours/tokens_per_pack=16384", "The size that most users train."),
    Priority(
        "versus/8M/all/tuned_batch=256,tokens_per_pack=65536",
        "The claim of this project is its ratio to other programs.",
    ),
    Priority("versus/650M", "The same claim at the size that most users train."),
    Priority("speed/35M/ours/tokens_per_pack=65536", "Completes the table of published sizes."),
    Priority("speed/150M/ours/tokens_per_pack=32768", "Completes it, with the longest window."),
    Priority("attention/8M", "Names the part that a change of speed comes from, in seconds."),
    Priority("attention/650M", "The same for the largest of the head sizes."),
    Priority("kernels/8M", "Decides which kernels stay, at the size where they gain most."),
    Priority("kernels/650M", "The second size of that decision."),
    Priority("profile", "Explains what remains. A profiler slows its process, so it comes last."),
    Priority("ceilings", "Changes with the machine alone."),
)
"""Most important cases first. All others follow in the order of the stages."""
MEMORY_SHARE = 0.9
"""Share of the GPU's memory that warm-ups may need together."""
CORES_PER_WARM_UP = 2
"""Cores of a process that compiles: one for Python, and one for the compilers that it starts."""


class Job(NamedTuple):
    """Work that may run beside other such work."""

    seconds: float
    gigabytes: float


@dataclass(frozen=True)
class Room:
    """Resources that jobs share if they run side by side."""

    gigabytes: float
    """Memory of the GPU; infinity without one."""
    cores: int

    def has_place(self, job: Job, running: Sequence[Job]) -> bool:
        """Return whether a job can start beside those that run; the first job always can."""
        if not running:
            return True
        if len(running) >= max(1, self.cores // CORES_PER_WARM_UP):
            return False
        needed = job.gigabytes + sum(other.gigabytes for other in running)
        return needed <= self.gigabytes * MEMORY_SHARE


class Group(NamedTuple):
    """Cases of one process, in their order."""

    process: str
    cases: list[Case]

    @property
    def job(self) -> Job:
        """Warm-up of the timed cases, and all of the others."""
        seconds = sum(
            case.warm_seconds if case.is_timed else case.warm_seconds + case.seconds
            for case in self.cases
        )
        return Job(seconds, max(case.gigabytes for case in self.cases))


def in_order(cases: Sequence[Case]) -> list[Case]:
    """Sort cases by ``ORDER``. Those that slow their process come after all others of it."""

    def place(case: Case) -> tuple[bool, int]:
        ranks = (rank for rank, priority in enumerate(ORDER) if priority.includes(case))
        return case.slows_process, next(ranks, len(ORDER))

    return sorted(cases, key=place)


def grouped(cases: Sequence[Case]) -> list[Group]:
    """Return the groups of cases that share a process, each in the place of its first case."""
    groups: dict[str, Group] = {}
    for case in cases:
        process = case.process or case.id
        groups.setdefault(process, Group(process, [])).cases.append(case)
    return list(groups.values())


def side_by_side_seconds(jobs: Sequence[Job], room: Room) -> float:
    """Return the time of jobs, each of which starts as soon as it has place."""
    waiting = list(jobs)
    running: list[tuple[float, Job]] = []
    now = 0.0
    while waiting or running:
        for job in list(waiting):
            if room.has_place(job, [other for _, other in running]):
                running.append((now + job.seconds, job))
                waiting.remove(job)
        first = min(running)
        running.remove(first)
        now = first[0]
    return now


def expected_seconds(cases: Sequence[Case], room: Room) -> float:
    """Return the expected time of cases: warm-ups side by side, then measurements one after the other."""
    warm_up = side_by_side_seconds([group.job for group in grouped(cases)], room)
    return warm_up + sum(case.seconds for case in cases if case.is_timed)


def fitting(cases: Sequence[Case], seconds: float, room: Room) -> list[Case]:
    """Return the cases, in their order, that fit a time. One that does not fit makes way for later ones."""
    if math.isinf(seconds):
        return list(cases)
    chosen: list[Case] = []
    for case in cases:
        if expected_seconds([*chosen, case], room) <= seconds:
            chosen.append(case)
    return chosen
