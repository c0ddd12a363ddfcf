"""Helm charts of EKS clusters: their sources and hashes, and the copies that `make charts` leaves here."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from config.section import Section

TABLE = Path(__file__).with_suffix(".json")
"""Table for people who upgrade a chart (docs/charts.md)."""
CACHE = Path(__file__).parents[1] / ".charts"

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class GitFolder(Section):
    """A folder of a repository at a commit, whose id is a hash of all its files: a branch cannot be given."""

    repository: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    folder: str
    content_sha256: Sha256 | None
    """``content_sha256`` of the folder as it is in the commit, before archives are added and Chart.yaml is
    rewritten. Null if it is not recorded yet; the commit's id alone then holds."""


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

    @property
    def pins(self) -> dict[str, Any]:
        """Return the pins that determine the assembled files."""
        return {**self.model_dump(), "left_out": sorted(self.left_out)}


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


def chart_folder(name: str, *, cache: Path = CACHE, table: Path = TABLE) -> Path:
    """The folder of a chart of the table, with every file as it was when it was fetched.

    Args:
        name: In the table.
        cache: Where `make charts` puts charts.
        table: What they must be.

    Raises:
        ValueError: if the chart is not there whole, with the command that brings it.
    """
    problem = problem_of(name, load_charts(table)[name], cache)
    if problem:
        raise ValueError(f"{problem}; run make charts, which needs git and the internet")
    return files_folder(cache, name)


def files_folder(cache: Path, name: str) -> Path:
    return cache / name / "chart"


def lock_file(cache: Path, name: str) -> Path:
    """Beside the files, so that both come into place by one rename."""
    return cache / name / "lock.json"


def problem_of(name: str, chart: Chart, cache: Path) -> str | None:
    """Why a cached chart is not to be used; None if it is."""
    try:
        lock = json.loads(lock_file(cache, name).read_text())
    except (OSError, ValueError):
        lock = None
    if not isinstance(lock, dict) or lock.keys() != {"pins", "files"}:
        return f"chart {name} is not in {cache}"
    if lock["pins"] != chart.pins:
        return f"chart {name} in {cache} is another one than the table asks for"
    try:
        files = files_of(files_folder(cache, name))
    except ValueError as error:
        return str(error)
    differing = {path for path, _ in files.items() ^ lock["files"].items()}
    if differing:
        more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        return f"chart {name} in {cache} was changed after it was fetched: {min(differing)}{more}"
    return None


def files_of(folder: Path) -> dict[str, str]:
    """SHA-256 of each file below a folder by its path there, with slashes.

    Raises:
        ValueError: if there is anything but plain files, as a link, which would be read somewhere else.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path} is not a plain file; a chart of plain files is expected")
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return files


def content_sha256(files: dict[str, str]) -> str:
    """Return the SHA-256 of lines ``<sha256>  <path>`` sorted by path, as `sha256sum` prints them."""
    lines = "".join(f"{files[path]}  {path}\n" for path in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def write_lock(path: Path, chart: Chart, files: dict[str, str]) -> None:
    path.write_text(json.dumps({"pins": chart.pins, "files": files}, indent=2, sort_keys=True) + "\n")
