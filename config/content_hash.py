"""The hash that names what is uploaded, for the constructs that upload and the tools that compare."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

IGNORED = ("__pycache__", "*.pyc")
"""What running the code leaves beside it."""


def content_hash(folder: Path, extra_files: Mapping[str, str]) -> str:
    """16 hex digits that depend on relative paths and bytes alone, not on modes, times or order on disk."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not any(fnmatch(part, ignored) for part in path.parts for ignored in IGNORED)
    }
    files |= {name: text.encode() for name, text in extra_files.items()}
    digest = hashlib.sha256()
    for name in sorted(files):
        # Lengths first, so that bytes cannot move between a name and its content unnoticed.
        digest.update(f"{len(name)} {len(files[name])} {name}".encode() + files[name])
    return digest.hexdigest()[:16]
