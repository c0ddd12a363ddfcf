"""Jobs and runs in the text that ``jobs_on_cluster.sh status`` prints, for ``--json``."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

NUM_COLUMNS = 6
"""Columns of the queue: job, name, state, time, nodes, and the nodes' names or the reason to wait."""
_HEADING = re.compile(r"job (?P<job>\S+)  run (?P<run>.*)  (?P<state>\S*)")
_LINE = re.compile(r"  (?P<name>log|metrics) +(?P<text>.*)")


@dataclass(frozen=True)
class QueuedJob:
    """Job in Slurm's queue."""

    job: str
    name: str
    state: str
    time: str
    nodes: str
    where: str


@dataclass
class FollowedRun:
    """Run of one of the newest jobs."""

    job: str
    run: str
    state: str
    log: str | None = None
    metrics: str | None = None


@dataclass(frozen=True)
class JobList:
    """Queue, and the newest runs."""

    jobs: list[QueuedJob]
    runs: list[FollowedRun]


def read_status(lines: Iterable[str]) -> JobList:
    """Return the jobs and runs in the text. A run without a state has ended."""
    rest = iter(lines)
    queue = list(takewhile(bool, rest))
    return JobList(list(_queued(queue)), list(_followed(rest)))


def _queued(rows: Iterable[str]) -> Iterator[QueuedJob]:
    for row in rows:
        cells = row.split(maxsplit=NUM_COLUMNS - 1)
        # Other lines are warnings of squeue, its header, and the number of jobs that are left out.
        if len(cells) == NUM_COLUMNS and cells[0][0].isdigit():
            yield QueuedJob(*cells)


def _followed(lines: Iterable[str]) -> Iterator[FollowedRun]:
    found: FollowedRun | None = None
    for line in lines:
        if heading := _HEADING.fullmatch(line):
            if found:
                yield found
            found = FollowedRun(heading["job"], heading["run"], heading["state"] or "ENDED")
        elif found and (part := _LINE.fullmatch(line)):
            setattr(found, part["name"], part["text"])
    if found:
        yield found
