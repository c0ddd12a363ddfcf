"""Commit of a working tree, and a folder with exactly its files that go into an image."""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.archives import extract

IMAGE_PATHS = (".dockerignore", "LICENSE", "docker", "workloads")
"""Paths that images are built from; changes elsewhere do not change the image."""
PACKAGE = "workloads/seqlm/__init__.py"
"""File that commits lack whose package had another name."""
NUM_SHOWN = 5


@dataclass(frozen=True)
class Revision:
    sha: str
    committed_at_seconds: int
    """Seconds since 1970; reproducible builds give every file this time."""
    changes: tuple[str, ...]
    """Files below ``IMAGE_PATHS`` with uncommitted changes, as in git's short status."""

    @property
    def tag(self) -> str:
        """Tag of the image: the commit's, or for uncommitted changes one that is never pushed."""
        return f"{self.sha}-dirty" if self.changes else self.sha

    @property
    def committed_at(self) -> str:
        """RFC 3339, in UTC."""
        return datetime.fromtimestamp(self.committed_at_seconds, UTC).isoformat().replace("+00:00", "Z")


def read_revision(repository: Path) -> Revision:
    """Ask git.

    Raises:
        ValueError: if the folder is not in a git repository, or has no commit yet.
    """
    sha, seconds = _git(repository, "log", "-1", "--format=%H %ct").split()
    # Index times that only differ are no change, and what ignores say is none either.
    status = _git(repository, "status", "--porcelain", "--untracked-files=all", "--", *IMAGE_PATHS)
    return Revision(sha, int(seconds), tuple(status.splitlines()))


def require_clean(revision: Revision, *, instead: str) -> None:
    """Raise ValueError with the list of uncommitted files."""
    if not revision.changes:
        return
    more = len(revision.changes) - NUM_SHOWN
    shown = "\n".join(f"  {change}" for change in revision.changes[:NUM_SHOWN])
    raise ValueError(
        f"files of the image differ from commit {revision.sha[:12]}, which would be its name:\n{shown}\n"
        + (f"  and {more} more\n" if more > 0 else "")
        + f"commit them, or {instead}"
    )


def has_package(repository: Path, commit: str) -> bool | None:
    """Return whether a commit has the package ``seqlm``; None if the repository does not have the commit."""
    if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        return None
    try:
        _git(repository, "cat-file", "-e", f"{commit}^{{commit}}")
    except ValueError:
        return None
    return bool(_git(repository, "ls-tree", commit, PACKAGE))


@contextmanager
def build_context(repository: Path, revision: Revision) -> Iterator[Path]:
    """The files to build from: those of the commit, with its time, or the working tree if it has changes."""
    if revision.changes:
        yield repository
        return
    archive = subprocess.run(
        ["git", "archive", "--format=tar", revision.sha, "--", *IMAGE_PATHS],
        cwd=repository,
        capture_output=True,
        check=True,
    ).stdout
    with TemporaryDirectory(prefix="image-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            extract(tar, Path(folder))
        yield Path(folder)


def _git(repository: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise ValueError("git is missing; images are named by commit: install git") from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().splitlines()
        raise ValueError(
            f"{repository}: git {arguments[0]} failed ({reason[-1] if reason else error.returncode}); images "
            "are named by commit: build from a clone of the repository"
        ) from None
    return done.stdout.rstrip("\n")
