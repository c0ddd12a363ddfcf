"""Helm charts of EKS clusters: their sources and hashes, and the copies that `make charts` creates."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from config.section import Section

TABLE = Path(__file__).with_suffix(".json")
"""Table of charts; docs/charts.md describes how to upgrade a chart."""
CACHE = Path(__file__).parents[1] / ".charts"
"""Folder in which `make charts` stores the charts."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class GitFolder(Section):
    """Folder of a repository at a commit.

    The id of a commit is a hash of all its files, which is why a branch is not accepted.
    """

    repository: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    folder: str
    content_sha256: Sha256 | None
    """``content_sha256`` of the folder in the commit, before archives are added and Chart.yaml is rewritten.

    Null if it is not recorded yet; then only the commit's id identifies the files.
    """


class Archive(Section):
    """Packaged chart that another chart depends on, and that is placed in the other's ``charts`` folder."""

    name: Name
    version: str
    url: str
    sha256: Sha256


class Chart(Section):
    """Chart with its dependencies."""

    git: GitFolder
    archives: list[Archive]
    """Dependencies outside of the chart's own folder; those within it need no entry."""
    left_out: dict[Name, str]
    """Dependencies that are not installed, each with the reason."""

    @property
    def pins(self) -> dict[str, Any]:
        """Return the pins that determine the assembled files."""
        return {**self.model_dump(), "left_out": sorted(self.left_out)}


def load_charts(table: Path = TABLE) -> dict[str, Chart]:
    """Return the charts of the table by name.

    Raises:
        ValueError: if the table is invalid, for example because of a branch instead of a commit.
    """
    try:
        return TypeAdapter(dict[Name, Chart]).validate_json(table.read_bytes())
    except ValidationError as error:
        faults: list[str] = []
        for details in error.errors():
            place = ".".join(map(str, details["loc"]))
            faults.append(f"{place}: got {details['input']!r}: {details['msg']}")
        raise ValueError(f"{table}: {'; '.join(faults)}") from None


def chart_folder(name: str, *, cache: Path = CACHE, table: Path = TABLE) -> Path:
    """Return the folder of a chart, after a check that no file has changed since it was fetched.

    Args:
        name: name in the table.
        cache: folder in which `make charts` stores the charts.
        table: table of charts.

    Raises:
        ValueError: if the chart is missing or changed; the message names the command that fetches it.
    """
    problem = problem_of(name, load_charts(table)[name], cache)
    if problem:
        raise ValueError(f"{problem}; run make charts, which needs git and the internet")
    return files_folder(cache, name)


def files_folder(cache: Path, name: str) -> Path:
    """Return the folder of a cached chart's files."""
    return cache / name / "chart"


def lock_file(cache: Path, name: str) -> Path:
    """Return the file with a cached chart's pins and hashes.

    It is beside the files, so that one rename moves both into place.
    """
    return cache / name / "lock.json"


def problem_of(name: str, chart: Chart, cache: Path) -> str | None:
    """Return why a cached chart must not be used; None if it may be."""
    try:
        lock = json.loads(lock_file(cache, name).read_text())
    except (OSError, ValueError):
        lock = None
    if not isinstance(lock, dict) or lock.keys() != {"pins", "files"}:
        return f"chart {name} is not in {cache}"
    if lock["pins"] != chart.pins:
        return f"chart {name} in {cache} is not the one in the table"
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
    """Return the SHA-256 of each file below a folder, by its path within the folder, with slashes.

    Raises:
        ValueError: if the folder contains anything but plain files, for example a link.
    """
    files: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path} is not a plain file; a chart may contain only plain files")
        if path.is_file():
            relative = path.relative_to(folder).as_posix()
            files[relative] = hashlib.sha256(path.read_bytes()).hexdigest()
    return files


def content_sha256(files: dict[str, str]) -> str:
    """Return the SHA-256 of lines ``<sha256>  <path>`` sorted by path, as `sha256sum` prints them."""
    lines = "".join(f"{files[path]}  {path}\n" for path in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def write_lock(path: Path, chart: Chart, files: dict[str, str]) -> None:
    """Write the file with a chart's pins and the hashes of its files."""
    path.write_text(
        json.dumps({"pins": chart.pins, "files": files}, indent=2, sort_keys=True) + "\n"
    )
