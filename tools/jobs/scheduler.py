"""Protocol of a scheduler; ``slurm/jobs.py`` and ``kubernetes/jobs.py`` implement it."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from workloads.run_file import RunFile

NamedRun = tuple[RunFile, str]
"""A run with its overrides, and the text of its file."""


class Scheduler(ABC):
    """Jobs of one cluster."""

    nodes_help: str
    image_help: str
    hang_seconds: int
    """Default of ``--hang-seconds``."""

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of every command."""

    @abstractmethod
    def add_submit_options(self, parser: argparse.ArgumentParser) -> None:
        """Add those of submit alone."""

    @abstractmethod
    def submit(self, run: NamedRun | None, options: argparse.Namespace, *, version: str) -> int:
        """Submit a stage; without a run, of a bandwidth job.

        Raises:
            ValueError: listing all that does not fit together, or with the scheduler's refusal.
        """

    @abstractmethod
    def status(self, options: argparse.Namespace) -> int:
        """Print jobs, and how far they are."""

    @abstractmethod
    def tail(self, options: argparse.Namespace) -> int:
        """Print the log of ``options.job`` until it ends."""

    @abstractmethod
    def cancel(self, options: argparse.Namespace) -> int:
        """Have ``options.job`` save and end."""

    @abstractmethod
    def fetch(self, options: argparse.Namespace, to: Path) -> int:
        """Bring the results of ``options.job`` into a folder of runs.

        Raises:
            ValueError: if there is nothing to bring, or it came damaged.
        """


def print_found(found: Mapping[str, str], *, follow: str) -> None:
    """Print a job and where its files are.

    Args:
        found: by name; ``job`` is one of them.
        follow: what to type next.
    """
    for name, value in found.items():
        print(f"{name:8} {value}")
    print(f"next     {follow}")
