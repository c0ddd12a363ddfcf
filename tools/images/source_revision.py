"""Commit of a working tree, and a folder with the files of the commit that go into an image."""

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
"""Most changed files that a message lists."""


@dataclass(frozen=True)
class Revision:
    sha: str
    committed_at_seconds: int
    """Seconds since 1970; reproducible builds give every file this time."""
    changes: tuple[str, ...]
    """Files below ``IMAGE_PATHS`` with uncommitted changes, as in git's short status."""

    @property
    def tag(self) -> str:
        """Tag of the image: the commit's hash, or with uncommitted changes a tag that is never pushed."""
        return f"{self.sha}-dirty" if self.changes else self.sha

    @property
    def committed_at(self) -> str:
        """Time of the commit in UTC, as RFC 3339 writes it."""
        return (
            datetime.fromtimestamp(self.committed_at_seconds, UTC)
            .isoformat()
            .replace("+00:00", "Z")
        )


def read_revision(repository: Path) -> Revision:
    """Return the revision of a working tree.

    Raises:
        ValueError: if the folder is not in a git repository, or has no commit yet.
    """
    sha, seconds = _git(repository, "log", "-1", "--format=%H %ct").split()
    # The status includes new files, but no ignored ones.
    status = _git(repository, "status", "--porcelain", "--untracked-files=all", "--", *IMAGE_PATHS)
    return Revision(sha, int(seconds), tuple(status.splitlines()))


def require_clean(revision: Revision, *, instead: str) -> None:
    """Refuse uncommitted changes.

    Args:
        revision: revision of the working tree.
        instead: alternative to a commit, for the message.

    Raises:
        ValueError: listing the changed files.
    """
    if not revision.changes:
        return
    shown = [f"  {change}" for change in revision.changes[:NUM_SHOWN]]
    num_others = len(revision.changes) - NUM_SHOWN
    if num_others > 0:
        shown.append(f"  and {num_others} more")
    listed = "\n".join(shown)
    raise ValueError(
        f"files of the image differ from commit {revision.sha[:12]}, which would be its name:\n{listed}\n"
        f"commit them, or {instead}"
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
    """Give a folder with the commit's files and its time, or the working tree if it has changes."""
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
        done = subprocess.run(
            ["git", *arguments], cwd=repository, capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        raise ValueError("git is missing; images are named by commit: install git") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines()
        reason = lines[-1] if lines else error.returncode
        raise ValueError(
            f"{repository}: git {arguments[0]} failed ({reason}); images are named by commit: build from a "
            "clone of the repository"
        ) from None
    return done.stdout.rstrip("\n")
