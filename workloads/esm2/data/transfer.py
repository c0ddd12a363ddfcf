"""Bring one remote file to disk whole: resumed after a break, verified, and put in place atomically.

While a file travels it is ``<name>.partial`` with ``<name>.partial.json`` beside it, which says
what the remote looked like when the transfer began; a complete file keeps that note as
``<name>.source.json``. The protocol (HTTP, S3) is behind ``Remote``.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from tqdm import tqdm

from workloads.esm2.heartbeat import beat
from workloads.esm2.whole_file import write_whole

log = logging.getLogger(__name__)

T = TypeVar("T")

CHUNK_BYTES = 1 << 20
MAX_ATTEMPTS = 8
"""Tries in a row that bring no new byte; with the waits below that is about two minutes of outage."""
FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 60.0


class FetchError(ValueError):
    """The file cannot be had; the message names the address and what to do."""


class BeingFetched(FetchError):
    """Another process downloads the same file right now."""


class TransientError(Exception):
    """A failure that may pass: a broken connection, an overloaded server."""


class ChangedError(Exception):
    """The remote is no longer the file whose beginning is on disk, or will not serve the rest of it."""


@dataclass(frozen=True)
class Checksum:
    """A digest as the source publishes it."""

    algorithm: str
    """``md5``, ``sha1``, ``sha256`` or ``crc32``."""
    hex_digest: str
    published_by: str


@dataclass(frozen=True)
class RemoteState:
    """What a remote says about its file without sending it."""

    validator: str | None
    """Changes whenever the content does: a strong ETag or the modification date; None without either."""
    length_bytes: int | None


class Remote(Protocol):
    @property
    def address(self) -> str:
        """For messages and notes on disk: never holds credentials."""
        ...

    @property
    def name(self) -> str:
        """File name to store it under."""
        ...

    def head(self) -> RemoteState: ...

    def published_checksum(self, state: RemoteState) -> Checksum | None: ...

    def read(self, offset_bytes: int, state: RemoteState) -> Iterator[bytes]:
        """Give the content from ``offset_bytes`` on, or ChangedError if it is no longer ``state``'s."""
        ...


def download(remote: Remote, downloads: Path, *, progress: bool) -> Path:
    """``remote`` as a complete file in ``downloads``; nothing is sent again that is already there.

    Raises:
        FetchError: if the file cannot be had whole.
    """
    try:
        downloads.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FetchError(
            f"cannot make the download folder {downloads}: {error.strerror}; set data.downloads to another"
        ) from None
    target = _place_for(remote, downloads)
    if target.exists() and _is_current(remote, target):
        return target
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("ab") as stream:
            _lock(stream, partial)
            state = _transfer(remote, stream, partial, progress=progress)
            _verify(remote, state, partial)
            # The note comes second: a kill in between costs a new download, never a wrong belief about
            # the file.
            os.replace(partial, target)
            note = _as_note(remote, state) | {"bytes_on_disk": target.stat().st_size}
            _write_note(_finished_note_of(target), note)
            _note_of(partial).unlink(missing_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(
                f"{remote.address}: the disk of {downloads} is full after {partial.stat().st_size} bytes; "
                "free space or set data.downloads to another disk, and run again to go on from there"
            ) from None
        if isinstance(error, PermissionError):
            raise FetchError(
                f"{remote.address}: cannot write {partial}: {error.strerror}; set data.downloads to a "
                "folder of yours"
            ) from None
        raise
    return target


def with_retries(address: str, action: Callable[[], T]) -> T:
    """Call ``action``, again with growing waits while it fails transiently."""
    for attempt in range(MAX_ATTEMPTS):
        try:
            return action()
        except TransientError as error:
            _wait_or_give_up(address, error, attempt)
    raise AssertionError("unreachable: the last attempt raises")


def _place_for(remote: Remote, downloads: Path) -> Path:
    """Choose the path: the remote's own name, or one marked with its address if that name is taken."""
    digest = hashlib.sha256(remote.address.encode()).hexdigest()[:8]
    for name in (remote.name, f"{digest}-{remote.name}"):
        target = downloads / name
        owners = [
            note["address"]
            for path in (_finished_note_of(target), _note_of(target.with_name(name + ".partial")))
            if (note := _read_note(path)) is not None
        ]
        if target.exists() and not owners:
            raise FetchError(
                f"{remote.address}: {target} is in the way and was not downloaded by this program; to use "
                "that file "
                f"give {target} as the source, otherwise move it away"
            )
        if all(owner == remote.address for owner in owners):
            return target
    raise FetchError(
        f"{remote.address}: both {remote.name} and {digest}-{remote.name} in {downloads} belong to other "
        "addresses; set data.downloads to another folder"
    )


def _is_current(remote: Remote, target: Path) -> bool:
    """Whether the file at ``target`` is still what the remote offers, or the remote cannot be asked."""
    note = _read_note(_finished_note_of(target))
    if note is None or target.stat().st_size != note["bytes_on_disk"]:
        log.warning("%s: %s is not the file that was downloaded; starting again", remote.address, target)
        return False
    try:
        state = remote.head()
    except (TransientError, FetchError) as error:
        log.warning("%s; using the complete copy at %s unchecked", _naming(remote.address, error), target)
        return True
    if state.validator is not None and _as_note(remote, state) == {
        k: note.get(k) for k in _as_note(remote, state)
    }:
        log.info("%s is already at %s", remote.address, target)
        return True
    log.warning("%s has changed since %s was downloaded; downloading it again", remote.address, target)
    return False


def _transfer(remote: Remote, stream: BinaryIO, partial: Path, *, progress: bool) -> RemoteState:
    """Append to ``partial`` until it is complete."""
    attempt = 0
    while True:
        before_bytes = stream.seek(0, os.SEEK_END)
        try:
            state = remote.head()
            offset_bytes = _resume_offset(remote, state, stream, partial)
            _check_free_space(remote, state, offset_bytes, partial.parent)
            _append(remote, state, stream, offset_bytes, progress=progress)
            return state
        except TransientError as error:
            if stream.seek(0, os.SEEK_END) > before_bytes:
                attempt = 0
            _wait_or_give_up(remote.address, error, attempt)
        except ChangedError as error:
            if attempt + 1 >= MAX_ATTEMPTS:
                raise FetchError(f"{remote.address}: {error}, again and again; try later") from None
            log.warning("%s: %s; starting again", remote.address, error)
            stream.truncate(0)
        attempt += 1


def _resume_offset(remote: Remote, state: RemoteState, stream: BinaryIO, partial: Path) -> int:
    """Count the bytes of ``partial`` that begin the remote; drop others, and bring its note up to date."""
    have_bytes = stream.seek(0, os.SEEK_END)
    note_path = _note_of(partial)
    expected = _as_note(remote, state)
    resumable = state.validator is not None and _read_note(note_path) == expected
    too_long = state.length_bytes is not None and have_bytes > state.length_bytes
    if have_bytes and (not resumable or too_long):
        log.warning(
            "%s has changed since %s was begun, or cannot be resumed; starting again", remote.address, partial
        )
        stream.truncate(0)
        have_bytes = 0
    _write_note(note_path, expected)
    if have_bytes:
        log.info("%s: going on after %d bytes", remote.address, have_bytes)
    return have_bytes


def _check_free_space(remote: Remote, state: RemoteState, offset_bytes: int, folder: Path) -> None:
    if state.length_bytes is None:
        return
    needed_bytes = state.length_bytes - offset_bytes
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise FetchError(
            f"{remote.address}: {needed_bytes} bytes to download but {free_bytes} free on the disk of "
            f"{folder}; free space or set data.downloads to another disk"
        )


def _append(
    remote: Remote, state: RemoteState, stream: BinaryIO, offset_bytes: int, *, progress: bool
) -> None:
    if state.length_bytes == offset_bytes and offset_bytes:
        return
    with tqdm(
        total=state.length_bytes,
        initial=offset_bytes,
        desc=remote.name,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        file=sys.stderr,
        disable=not progress,
        # A log file wants a line now and then, not ten a second.
        mininterval=0.1 if sys.stderr.isatty() else 30,
    ) as bar:
        for chunk in remote.read(offset_bytes, state):
            beat("downloading", slow=True)
            stream.write(chunk)
            bar.update(len(chunk))
    stream.flush()
    got_bytes = stream.seek(0, os.SEEK_END)
    if state.length_bytes is not None and got_bytes != state.length_bytes:
        stream.truncate(0)
        raise FetchError(
            f"{remote.address}: the server announced {state.length_bytes} bytes and sent {got_bytes}; "
            "nothing was kept, run again, and if that stays so tell the server's owner"
        )
    os.fsync(stream.fileno())


def _verify(remote: Remote, state: RemoteState, partial: Path) -> None:
    checksum = with_retries(remote.address, lambda: remote.published_checksum(state))
    if checksum is None:
        return
    got = digest_of(partial, checksum.algorithm)
    if got != checksum.hex_digest:
        partial.unlink()
        _note_of(partial).unlink(missing_ok=True)
        raise FetchError(
            f"{remote.address}: {checksum.algorithm} is {got}, but {checksum.published_by} says "
            f"{checksum.hex_digest}; "
            "the file was not kept, run again to download it anew"
        )
    log.info("%s: %s agrees with %s", remote.address, checksum.algorithm, checksum.published_by)


def digest_of(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        if algorithm != "crc32":
            return hashlib.file_digest(
                stream, lambda: hashlib.new(algorithm, usedforsecurity=False)
            ).hexdigest()
        value = 0
        while chunk := stream.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
        return f"{value:08x}"


def _wait_or_give_up(address: str, error: TransientError, attempt: int) -> None:
    if attempt + 1 >= MAX_ATTEMPTS:
        raise FetchError(
            f"{_naming(address, error)}, {MAX_ATTEMPTS} times in a row; check the network and run again, "
            "what has arrived so far is kept"
        ) from None
    seconds = min(FIRST_BACKOFF_SECONDS * 2**attempt, MAX_BACKOFF_SECONDS)
    log.warning("%s; trying again in %g s", _naming(address, error), seconds)
    time.sleep(seconds)


def _naming(address: str, error: Exception) -> str:
    return str(error) if address in str(error) else f"{address}: {error}"


def _lock(stream: BinaryIO, partial: Path) -> None:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who was just finishing may have given the file its name between open and lock.
        if not partial.exists() or not os.path.samestat(partial.stat(), os.fstat(stream.fileno())):
            raise BlockingIOError
    except BlockingIOError:
        raise BeingFetched(
            f"{partial} is being written by another process; wait for it, or set data.downloads to another "
            "folder"
        ) from None
    except OSError as error:
        # Network file systems may be mounted without locks; then two runs at once are the user's care.
        log.info("%s: no file lock on this file system (%s)", partial, error.strerror)


def _note_of(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _finished_note_of(target: Path) -> Path:
    return target.with_name(target.name + ".source.json")


def _as_note(remote: Remote, state: RemoteState) -> dict[str, object]:
    return {
        "address": remote.address,
        "validator": state.validator,
        "length_bytes": state.length_bytes,
    }


def _read_note(path: Path) -> dict[str, object] | None:
    try:
        note = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return note if isinstance(note, dict) and "address" in note else None


def _write_note(path: Path, note: dict[str, object]) -> None:
    write_whole(path, json.dumps(note, indent=1) + "\n")
