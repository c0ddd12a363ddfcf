"""Folder of prepared data: checks of an existing one, and creation of a new one.

A new folder is written beside its destination under a lock. It is renamed when it is complete, or removed.
"""

import dataclasses
import errno
import hashlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from seqlm.training.report.page import size_text
from seqlm.training.whole_file import move_into_place

from .locks import try_lock
from .manifest import MANIFEST_FILE, Manifest, Settings, SourceFile
from .source_file import reading

SHOWN_ENTRIES = 3
"""Number of entries of a folder that a message names."""


class BeingPrepared(ValueError):
    """Another process prepares the same folder, or has completed it meanwhile."""


@contextmanager
def workspace(out: Path) -> Iterator[Path]:
    """Create a folder that becomes ``out`` if the block succeeds, and is removed if it fails.

    The folder of a killed run is removed first. SIGTERM raises an exception within the block.

    Raises:
        BeingPrepared: if another run is preparing the same folder, or has completed it meanwhile.
        ValueError: if a folder cannot be created there, or the disk fills up.
    """
    check_place(out)
    partial = out.parent / f".{out.name}.partial"
    lock = None
    try:
        lock = try_lock(out)
        is_complete = out.is_dir() and any(out.iterdir())
        if lock is not None and not is_complete:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
    except OSError as error:
        if lock is not None:
            lock.close()
        where = f"{out} cannot be created ({error.filename}: {error.strerror})"
        raise ValueError(f"{where}; choose another data.path, in a folder of yours") from None
    if lock is None:
        raise BeingPrepared(
            f"another process is preparing {out} right now; wait for it or choose another data.path"
        )
    if is_complete:
        lock.close()
        raise BeingPrepared(
            f"another process has completed {out} meanwhile; run the same command again"
        )
    with lock, _sigterm_raises():
        try:
            yield partial
            move_into_place(partial, out)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            free = shutil.disk_usage(out.parent).free
            written = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
            raise ValueError(
                f"the disk of {out.parent} filled up while preparing {out} ({error.strerror}; "
                f"{size_text(written)} written, {size_text(free)} free); nothing was kept; "
                "free space or choose a data.path on another disk"
            ) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def check_place(out: Path) -> None:
    """Raise a ValueError if a finished folder cannot be renamed to ``out``: it is a link or a mount point."""
    if out.is_symlink():
        raise ValueError(
            f"{out} is a link to {os.readlink(out)}; give that folder itself as data.path"
        )
    if out.name in ("", "..") or _is_mount_point(out):
        raise ValueError(
            f"{out} is a mount point or has no name; choose a folder below it as data.path"
        )


def _is_mount_point(folder: Path) -> bool:
    """Return whether a folder is a mount point; ismount misses bind mounts of the same file system."""
    mounts = Path("/proc/self/mountinfo")
    lines = mounts.read_bytes().splitlines() if mounts.exists() else []
    place = os.fsencode(os.path.realpath(folder)).replace(b" ", rb"\040")
    return os.path.ismount(folder) or place in [line.split()[4] for line in lines]


def check_free_space(out: Path, needed_bytes: int) -> None:
    """Raise a ValueError if the file system of ``out`` has less free space than needed."""
    existing = next(folder for folder in out.absolute().parents if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise ValueError(
            f"preparing {out} needs about {size_text(needed_bytes)} of disk, temporary files included, and "
            f"{size_text(free)} are free there; free space or choose a data.path on another disk"
        )


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Unwind the stack after SIGTERM, so that cleanup runs. Only the main thread may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def existing_manifest(out: Path, files: Mapping[Path, str], wanted: Settings) -> Manifest | None:
    """Return the manifest in ``out`` if it has the same sources and settings; None for an empty folder.

    Args:
        out: folder of prepared data.
        files: names of the sources in the manifest, by their paths.
        wanted: settings to prepare with.

    Raises:
        ValueError: if ``out`` holds anything else.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not out.is_dir():
        raise ValueError(
            f"{out} is a file; choose another data.path for the folder of prepared data"
        )
    if not (out / MANIFEST_FILE).exists():
        found = sorted(entry.name for entry in out.iterdir())[:SHOWN_ENTRIES]
        raise ValueError(
            f"{out} holds something else (no {MANIFEST_FILE}, but {', '.join(found)}); "
            "choose another data.path; nothing was touched"
        )
    manifest = Manifest.load(out)
    differences = differences_of(dataclasses.asdict(manifest.settings), dataclasses.asdict(wanted))
    if not _same_sources(manifest, files):
        prepared_names = ", ".join(sorted(source.name for source in manifest.sources))
        wanted_names = ", ".join(sorted(files.values()))
        if prepared_names == wanted_names:
            changed = "their contents changed"
        else:
            changed = f"there {prepared_names}, wanted {wanted_names}"
        differences.append(f"sources ({changed})")
    check_same(out, differences)
    return manifest


def differences_of(
    there: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """List the settings of prepared data that differ from the wanted ones, each with both values.

    Args:
        there: settings of the prepared data.
        wanted: settings to prepare with.
        prefix: beginning of each setting's name.
    """
    return [
        f"{prefix}{name} (there {there.get(name)!r}, wanted {value!r})"
        for name, value in wanted.items()
        if there.get(name) != value
    ]


def check_same(out: Path, differences: Sequence[str]) -> None:
    """Raise ValueError if prepared data differ from the wanted ones."""
    if differences:
        raise ValueError(
            f"{out} holds data prepared differently: {'; '.join(differences)}; "
            "choose another data.path, or delete that folder to prepare again"
        )


def _same_sources(manifest: Manifest, files: Mapping[Path, str]) -> bool:
    """Return whether data were prepared from these files.

    Names and sizes are compared first, because to hash UniRef50 takes about ten seconds.
    """
    sizes = sorted((name, path.stat().st_size) for path, name in files.items())
    if sizes != sorted((source.name, source.bytes) for source in manifest.sources):
        return False
    return set(manifest.sources) == {source_file(path, name) for path, name in files.items()}


def say(text: str) -> None:
    """Print a line for the user to stderr."""
    print(text, file=sys.stderr)


def source_file(path: Path, name: str) -> SourceFile:
    """Return the manifest's entry for a file."""
    with reading(path), path.open("rb") as file:
        return SourceFile(
            name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
        )
