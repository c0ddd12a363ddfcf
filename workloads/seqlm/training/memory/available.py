"""Memory of this node that a job may still use. Standard library only."""

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMORY_INFO = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_KIB = 1024


def available_bytes(folder: Path) -> int:
    """Return the number of bytes that may be written to a folder in memory.

    Files there count against the file system's size, against the node's memory, and against the limit of the
    job's control group.
    """
    space = os.statvfs(folder)
    return min(space.f_bavail * space.f_frsize, available_memory())


def available_memory() -> int:
    """Return the bytes of memory that this node and the limit of the job's control group leave."""
    return min([_available_on_node(), *_left_in_groups()])


def _available_on_node() -> int:
    for line in _MEMORY_INFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * _KIB
    raise ValueError(f"{_MEMORY_INFO} has no MemAvailable")


def _left_in_groups() -> Iterator[int]:
    """Yield what is left of the limit of each control group that this process is in.

    Files that the kernel can drop from memory count as free. Groups without a limit are left out.
    """
    for line in _OWN_GROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            root = _CGROUPS
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = _CGROUPS / "memory"
        else:
            continue
        limit_file, usage_file, droppable = names
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            limit = _number(folder / limit_file)
            usage = _number(folder / usage_file)
            if limit is not None and usage is not None:
                yield limit - usage + _entry(folder / "memory.stat", droppable)


def _number(path: Path) -> int | None:
    """Return the number in a file of a control group; None if it has no limit or is not there."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _entry(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)
