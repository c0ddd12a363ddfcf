"""Atomic writes of files and folders, which also survive a power failure. Standard library alone.

A file system may keep a rename and lose the content that was written before it. What is renamed into place is
therefore written to the disk first.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_NO_SYNC_OF_FOLDERS = {errno.EINVAL, errno.ENOTSUP}
"""Errors of file systems that cannot write a folder to the disk on request."""


def write_whole(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace the file, so that a reader finds either the old text or the new one.

    Args:
        path: file to replace or create.
        text: new content.
        mode: permissions of the file, also while it is written; None gives those of a new file.
    """
    new = path.with_name(f".{path.name}-{os.getpid()}")
    with naming(path):
        with new.open("w", encoding="utf-8") as stream:
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
            stream.write(text)
        move_into_place(new, path)


@contextlib.contextmanager
def writing_whole(path: Path) -> Iterator[Path]:
    """Yield a path with the same suffix, which replaces the file when the block ends without an error."""
    new = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield new
        move_into_place(new, path)
    finally:
        new.unlink(missing_ok=True)


def move_into_place(new: Path, path: Path) -> None:
    """Rename a file or folder once all of it is on the disk. The new name is on the disk at the end.

    A file replaces another, and a folder an empty one.
    """
    sync(new)
    new.replace(path)
    sync_entry(path.parent)


def sync(path: Path) -> None:
    """Write a file, or a folder with everything in it, to the disk. Links are not followed."""
    if path.is_symlink():
        return
    if path.is_dir():
        for entry in path.iterdir():
            sync(entry)
    sync_entry(path)


def sync_entry(path: Path) -> None:
    """Write a file, or the list of a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with naming(path):
            os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in _NO_SYNC_OF_FOLDERS):
            raise
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Delete a file, a link or a folder with everything in it. A missing one is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add a path to the errors of the system that name none, such as those of writes to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
