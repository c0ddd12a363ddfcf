"""Records of jobs, from Slurm's accounting or from Kubernetes."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

GPU = "gres/gpu"
NEURON = "gres/neuron"


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """One allocation of a job: in Slurm, or of a pod. A job that was requeued or resized has several."""

    number: str
    """Number of the job, which each task of an array has for itself."""
    job: str
    """Number as users see it: with the task of an array, or the part of a heterogeneous job."""
    name: str
    user: str
    account: str
    partition: str
    state: str
    start: int | None
    """Seconds since 1970; None if the job has not started."""
    end: int | None
    """Seconds since 1970; None if no end is recorded."""
    num_nodes: int
    num_cpus: float
    devices: Mapping[str, float]
    """Numbers of GPUs and other devices, by resource such as ``gres/gpu``. A slice is a part of a GPU."""
    nodes: str
    """Nodes as Slurm abbreviates them, such as ``ip-10-0-0-[20-22]``."""


@dataclass(frozen=True, kw_only=True)
class Accounting:
    records: Sequence[JobRecord]
    clock: int
    """Time of the cluster at which the records were read, in seconds since 1970."""
    tracked: frozenset[str]
    """Devices that the records have, such as ``gres/gpu``."""
    present: frozenset[str]
    """Numbers of the jobs that the scheduler still has."""
    hidden_from: str = ""
    """User who read the records, if slurmdbd may have hidden those of other users."""


def node_names(text: str) -> Iterator[str]:
    """Yield the names in a list that Slurm abbreviates, such as ``ip-10-0-0-[20-22],ip-10-0-1-5``."""
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        # Texts and brackets take turns.
        parts = re.split(r"\[([^\]]*)\]", item)
        choices = [
            list(_numbers(part)) if index % 2 else [part] for index, part in enumerate(parts)
        ]
        yield from map("".join, itertools.product(*choices))


def _numbers(text: str) -> Iterator[str]:
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}d}"
