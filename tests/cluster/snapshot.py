"""Snapshot of a machine's files, to detect changes."""

from __future__ import annotations

import hashlib
import os
import stat
from fnmatch import fnmatch
from pathlib import Path

# Logs, what services keep for themselves while they run, and the state of the last run, which has its time.
IGNORED = (
    "var/log/*",
    "var/spool/*",
    "var/lib/discover-nodes/*",
    "var/lib/mysql/*",
    "var/lib/node-setup/state.json",
    "var/lib/node_exporter/textfile/*",
    "var/lib/private/*",
    "var/lib/prometheus-agent/*",
    "var/lib/systemd/*",
    "var/lib/logrotate/*",
)


def snapshot(folder: Path) -> dict[str, str]:
    """Each file below it with its mode, owner, time of change and contents."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent) / name
            relative = str(path.relative_to(folder))
            status = path.lstat()
            if any(fnmatch(relative, pattern) for pattern in IGNORED):
                continue
            content = ""
            if stat.S_ISREG(status.st_mode):
                content = f"{status.st_mtime_ns} {hashlib.sha256(path.read_bytes()).hexdigest()}"
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            found[relative] = f"{status.st_mode:o} {status.st_uid}:{status.st_gid} {content}"
    return found
