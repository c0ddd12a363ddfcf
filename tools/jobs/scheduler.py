"""Protocol of a scheduler; ``slurm/jobs.py`` and ``kubernetes/jobs.py`` implement it."""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from tools.jobs.work import NamedRun
from tools.json_output import publish


class Scheduler(ABC):
    """Jobs of one cluster."""

    nodes_help: str
    """Text of ``--help`` for ``--nodes``."""
    image_help: str
    """Text of ``--help`` for ``--image``."""
    hang_seconds: int
    """Default of ``--hang-seconds``."""

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of every command."""

    @abstractmethod
    def add_submit_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of ``submit`` alone."""

    def add_follow_options(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027
        """Add the options of ``status``, ``tail``, ``cancel`` and ``fetch``; none by default."""

    @abstractmethod
    def submit(self, run: NamedRun | None, options: argparse.Namespace, *, version: str) -> int:
        """Submit a stage; ``run`` is None for a bandwidth job.

        Raises:
            ValueError: listing everything that does not fit together, or with the scheduler's refusal.
        """

    @abstractmethod
    def follow_up(self, command: str, options: argparse.Namespace) -> int:
        """Run ``status``, ``tail``, ``cancel`` or ``fetch``.

        Raises:
            ValueError: if the job does not exist, has nothing to fetch, or its files arrive damaged.
        """


def print_found(found: Mapping[str, str], *, follow: Sequence[str]) -> None:
    """Print a job and where its files are.

    Args:
        found: values to print, by name; ``job`` is one of them.
        follow: commands to type next.
    """
    places = [{"name": name, "value": value} for name, value in found.items() if name != "job"]
    publish(job=found["job"], places=places, next=list(follow))
    for name, value in found.items():
        print(f"{name:8} {value}")
    print(f"next     {', '.join(follow)}")
