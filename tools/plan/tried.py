"""Largest numbers of proteins, GPUs and nodes that were run. What a plan says beyond them is arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqlm.runs.run_file import RunFile
from seqlm.training.data.manifest import MANIFEST_FILE, Manifest
from tools.plan.placement import Place

PAGE = "docs/growth.md"
"""Page that says what was run, what follows by arithmetic, and what is unknown."""
UNIREF50_PROTEINS = 70_000_000
"""Proteins of UniRef50 in 2026, rounded."""
KNOWN_PROTEINS = {"uniref50": UNIREF50_PROTEINS}
"""Proteins of sources that a run file names without a file, as ``data.source`` has them."""


@dataclass(frozen=True)
class Tried:
    """Largest number that was run."""

    most: int
    unit: str
    """Noun for the number, in the singular."""
    conditions: str
    """Work that was run, and where."""

    @property
    def text(self) -> str:
        """Number with its noun: ``1 GPU``."""
        plural = "" if self.most == 1 else "s"
        return f"{self.most:,} {self.unit}{plural}"


PROTEINS = Tried(10_000_000, "protein", "prepared and planned on two cores of a CPU")
GPUS = Tried(1, "GPU", "an NVIDIA H200 outside of AWS")
NODES = Tried(3, "node", "workers of a real Slurm on one computer, with CPUs alone")
LIMITS = (PROTEINS, GPUS, NODES)
"""All limits, for docs/growth.md."""


def num_proteins(config: RunFile, given: int | None) -> int | None:
    """Return the number of proteins of a run; None if it is not known.

    Args:
        config: run file.
        given: number that the user gives. It has precedence over the prepared data.
    """
    if given is not None:
        return given
    if (Path(config.data.path) / MANIFEST_FILE).exists():
        return Manifest.load(config.data.path).records
    known = [KNOWN_PROTEINS[source] for source in config.data.source if source in KNOWN_PROTEINS]
    return sum(known) or None


def warnings(proteins: int | None, place: Place) -> list[str]:
    """Return a warning for each number of a run that is larger than any that was run.

    Args:
        proteins: proteins of the run; None if they are not known.
        place: nodes of the run.
    """
    gpus = None if place.hardware.is_neuron else place.world_size
    numbers = ((PROTEINS, proteins), (GPUS, gpus), (NODES, place.num_nodes))
    return [
        f"warning: this run has {number:,} {tried.unit}s, and the most that was run is {tried.text} "
        f"({tried.conditions}); the plan of more is arithmetic, see {PAGE}"
        for tried, number in numbers
        if number is not None and number > tried.most
    ]


def table(limits: Sequence[Tried] = LIMITS) -> list[dict[str, str]]:
    """Return the rows of the table of limits, with cells by heading."""
    return [
        {"number of": f"{tried.unit}s", "most": f"{tried.most:,}", "what was run": tried.conditions}
        for tried in limits
    ]
