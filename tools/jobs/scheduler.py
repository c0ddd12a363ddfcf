"""Protocol of a scheduler; ``slurm/jobs.py`` and ``kubernetes/jobs.py`` implement it."""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping

from tools.jobs.work import NamedRun


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
    def follow_up(self, command: str, options: argparse.Namespace) -> int:
        """Run ``status``, ``tail``, ``cancel`` or ``fetch``.

        Raises:
            ValueError: if there is no such job, or nothing of it to fetch, or that came damaged.
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
