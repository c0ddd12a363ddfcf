"""Fetches what charts are made of: a folder of a git repository at a commit, and packaged charts."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from config.charts import Archive, GitFolder

SECONDS_WITHOUT_DATA = 60
GIT_SECONDS = 900
"""For one command of git; a repository's commit is some MB."""
ELSEWHERE = (
    "git and the download follow https_proxy; without internet here, run make charts where there is some and "
    "copy .charts from there"
)
# The bytes of the commit, whatever the user's settings say of line ends; a stalled server ends it.
_GIT_SETTINGS = {
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.attributesFile": os.devnull,
    # Nothing goes on in the background of a folder that is about to be removed.
    "gc.auto": "0",
    "maintenance.auto": "false",
    "http.lowSpeedLimit": "1",
    "http.lowSpeedTime": str(SECONDS_WITHOUT_DATA),
}
# Of a git that runs this, as a hook's: they name another repository.
_OTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")


def fetch_folder(source: GitFolder, target: Path, scratch: Path) -> None:
    """Make ``target`` the folder of the commit; ``scratch`` is an empty folder for git.

    git compares every object with the hash it is asked for by, down from the commit, so what comes is what
    the table names, wherever branches are.

    Raises:
        ValueError: if git is missing, or it, the commit or the folder cannot be had.
    """
    repository, files = scratch / "repository", scratch / "files"
    files.mkdir()
    _git(scratch, "init", "--quiet", "--bare", repository.name, to=source)
    _git(repository, "fetch", "--depth=1", "--no-tags", source.repository, source.commit, to=source)
    _git(repository, f"--work-tree={files}", "checkout", source.commit, "--", source.folder, to=source)
    (files / source.folder).rename(target)


def _git(folder: Path, *arguments: str, to: GitFolder) -> None:
    settings = [word for name, value in _GIT_SETTINGS.items() for word in ("-c", f"{name}={value}")]
    environment = {name: value for name, value in os.environ.items() if name not in _OTHER_REPOSITORY}
    what = f"git of {to.repository} at {to.commit[:12]}"
    # On a terminal people see git's own progress and messages.
    shown = sys.stderr.isatty()
    try:
        subprocess.run(
            ["git", *settings, *arguments],
            cwd=folder,
            # Asks for no password: a repository that is not there is a message, not a wait.
            env={**environment, "GIT_TERMINAL_PROMPT": "0", "GIT_LITERAL_PATHSPECS": "1"},
            stdin=subprocess.DEVNULL,
            stderr=None if shown else subprocess.PIPE,
            text=True,
            timeout=GIT_SECONDS,
            check=True,
        )
    except FileNotFoundError:
        raise ValueError("git is missing: install it (Debian, Ubuntu: apt-get install git)") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{what} took more than {GIT_SECONDS} s; run make charts again") from None
    except subprocess.CalledProcessError as error:
        said = "as above" if shown else " ".join(error.stderr.split())
        raise ValueError(f"{what} failed: {said}; {ELSEWHERE}") from None


def fetch_archive(archive: Archive, folder: Path) -> Path:
    """The packaged chart in ``folder``, fetched unless it is there already.

    Raises:
        ValueError: if it cannot be had, or is another one than the table says.
    """
    path = folder / f"{archive.name}-{archive.version}.tgz"
    if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == archive.sha256:
        return path
    print(f"{archive.name} {archive.version}: from {archive.url}", flush=True)
    try:
        with urllib.request.urlopen(archive.url, timeout=SECONDS_WITHOUT_DATA) as response:
            data = response.read()
    except urllib.error.HTTPError as error:
        raise ValueError(f"{archive.url} answers {error.code} {error.reason}; {ELSEWHERE}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(f"{archive.url} could not be fetched: {reason}; {ELSEWHERE}") from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != archive.sha256:
        raise ValueError(
            f"{archive.url} has SHA-256 {digest} ({len(data)} bytes), not {archive.sha256} as in the table; "
            "it was not kept. A proxy changes files, or somebody has replaced it: look in its publisher's "
            "index.yaml before you change the table"
        )
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.rename(path)
    return path


def copy_archive(path: Path, chart: Path) -> None:
    """Into the folder where helm looks for what a chart depends on."""
    (chart / "charts").mkdir(exist_ok=True)
    shutil.copyfile(path, chart / "charts" / path.name)
