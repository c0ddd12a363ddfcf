"""Hash that names uploaded files, for the constructs that upload them and the tools that compare them."""

import hashlib
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

IGNORED = ("__pycache__", "*.pyc")
"""Files that running the code creates."""


def content_hash(folder: Path, extra_files: Mapping[str, str]) -> str:
    """Return 16 hex digits that depend only on relative paths and bytes, not on modes, times or order."""
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and not any(fnmatch(part, ignored) for part in path.parts for ignored in IGNORED)
    }
    files |= {name: text.encode() for name, text in extra_files.items()}
    digest = hashlib.sha256()
    for name in sorted(files):
        # The lengths come first, so that moving bytes between a name and its content changes the hash.
        digest.update(f"{len(name)} {len(files[name])} {name}".encode() + files[name])
    return digest.hexdigest()[:16]
