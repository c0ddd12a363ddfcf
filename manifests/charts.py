"""The Helm charts that EKS clusters install: where each comes from, and the hashes that it must have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from config.section import Section

TABLE = Path(__file__).with_suffix(".json")
"""Read by people who upgrade a chart; docs/charts.md says how."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class GitFolder(Section):
    """A folder of a repository at a commit, whose id is a hash of all its files: a branch cannot be given."""

    repository: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    folder: str


class Archive(Section):
    """A packaged chart that the Chart.yaml of another names, which finds it in its ``charts`` folder."""

    name: Name
    version: str
    url: str
    sha256: Sha256


class Chart(Section):
    """A chart with all that it depends on."""

    git: GitFolder
    archives: list[Archive]
    """Dependencies that Chart.yaml has elsewhere; those it has itself need no entry."""
    left_out: dict[Name, str]
    """Dependencies that do not go in, with the reason."""
    content_sha256: Sha256 | None
    """Of all its files as assembled (``chart_cache.content_sha256``); null where nobody has noted it yet, and
    the commit and the archives' hashes alone hold."""

    @property
    def pins(self) -> dict[str, Any]:
        """What the assembled files follow from."""
        return {
            "git": self.git.model_dump(),
            "archives": [archive.model_dump() for archive in self.archives],
            "left_out": sorted(self.left_out),
        }


def load_charts(table: Path = TABLE) -> dict[str, Chart]:
    """Charts by name.

    Raises:
        ValueError: if the table has a fault, as a branch in place of a commit.
    """
    try:
        return TypeAdapter(dict[Name, Chart]).validate_json(table.read_bytes())
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, details['loc']))}: got {details['input']!r}: {details['msg']}"
            for details in error.errors()
        )
        raise ValueError(f"{table}: {faults}") from None
