"""Atomic writes of small files. Standard library alone."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def write_whole(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace the file, so that a reader finds either the old text or the new one.

    Args:
        path: file to replace or create.
        text: new content.
        mode: permissions of the file, also while it is written; None gives those of a new file.
    """
    new = path.with_name(f".{path.name}-{os.getpid()}")
    with new.open("w", encoding="utf-8") as stream:
        if mode is not None:
            os.fchmod(stream.fileno(), mode)
        stream.write(text)
        stream.flush()
        # If the node fails, a shared file system may keep the new name and lose unwritten content.
        os.fsync(stream.fileno())
    new.replace(path)


@contextlib.contextmanager
def writing_whole(path: Path) -> Iterator[Path]:
    """Yield a path with the same suffix, which replaces the file when the block ends without an error."""
    new = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
