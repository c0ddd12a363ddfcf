"""Charts as `make charts` left them on this machine, and whether they still are what the table says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from manifests.charts import TABLE, Chart, load_charts

CACHE = Path(__file__).parents[1] / ".charts"


def chart_folder(
    name: str, *, stand_ins: Path | None = None, cache: Path = CACHE, table: Path = TABLE
) -> Path:
    """The folder of a chart of the table, with every file as it was when it was fetched.

    Args:
        name: In the table.
        stand_ins: A folder that has ``name`` in place of the cache and is compared with nothing: for tests
            without a network, which say so; nothing else may.
        cache: Where `make charts` puts charts.
        table: What they must be.

    Raises:
        ValueError: if the chart is not there whole, with the command that brings it.
    """
    if stand_ins is not None:
        folder = stand_ins / name
        if not (folder / "Chart.yaml").is_file():
            raise ValueError(f"{folder} has no Chart.yaml: there is no stand-in for chart {name}")
        return folder
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
    lock = _read_lock(lock_file(cache, name))
    if lock is None:
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
    noted = chart.content_sha256
    if noted and content_sha256(files) != noted:
        return f"chart {name} in {cache} has SHA-256 {content_sha256(files)}, the table has {noted}"
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
    """Of lines ``<sha256>  <path>`` sorted by path, as `sha256sum` prints them."""
    lines = "".join(f"{files[path]}  {path}\n" for path in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def write_lock(path: Path, chart: Chart, files: dict[str, str]) -> None:
    path.write_text(json.dumps({"pins": chart.pins, "files": files}, indent=2, sort_keys=True) + "\n")


def _read_lock(path: Path) -> dict[str, Any] | None:
    try:
        lock = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return lock if isinstance(lock, dict) and lock.keys() == {"pins", "files"} else None
