"""Rows of the growth benchmark: what grows, its sizes, and the sizes to which its cost is extrapolated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.plan.tried import UNIREF50_PROTEINS

Costs = Mapping[str, float]
"""Costs of one size by their unit, such as ``CPU s`` or ``bytes``."""
CPU_SECONDS = "CPU s"
"""Unit of processor time of a process and its children."""


@dataclass(frozen=True)
class Target:
    """Size that a user may reach and that the benchmark does not run."""

    name: str
    size: float


@dataclass(frozen=True)
class Scale:
    """Kind of size."""

    name: str
    """Plural noun, such as ``proteins``."""
    targets: tuple[Target, ...]


PROTEINS = Scale(
    "proteins",
    (Target("UniRef50", UNIREF50_PROTEINS), Target("UniRef90", 200e6), Target("3 G proteins", 3e9)),
)
"""Sizes of UniProt's clusters in 2026, rounded, and of the largest metagenomic collections."""
GPUS = Scale("GPUs", (Target("512 GPUs", 512), Target("4,096 GPUs", 4096)))
NODES = Scale("nodes", (Target("1,000 nodes", 1000),))
TEAMS = Scale("teams and access entries", (Target("500 of each", 500),))
USERS = Scale("users", (Target("500 users", 500),))
FILES = Scale("files", (Target("1 M files", 1e6),))
LINES = Scale("lines", (Target("10 M lines", 1e7),))


@dataclass(frozen=True)
class Row:
    """One kind of work, at three sizes."""

    name: str
    """Short name for ``--only`` and for the lines."""
    title: str
    """Description for the table."""
    scale: Scale
    sizes: tuple[int, int, int]
    """Sizes in ascending order."""
    measure: Callable[[int, Path], Costs]
    """Function that does the work of a size once, and returns its costs. It may write into the folder, which
    all sizes of a row share."""
    unknown: str
    """Part of the cost that neither the run nor the arithmetic shows."""
    expected_seconds: float
    """Wall time of all sizes on two idle cores, for the announcement."""
