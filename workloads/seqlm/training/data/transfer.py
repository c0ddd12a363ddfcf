"""Download of sources, such as ``data.source``, to files on this machine.

An entry of a list of sources is ``sample`` (a file of this repository), a word for a public data set, a file,
a folder, or an https:// or s3:// address. ``./sample`` is a file with the name of a word.

A download is resumed after a break, verified, and put in place atomically. During the transfer the file is
``<name>.partial``. The note ``<name>.partial.json`` beside it has the state of the remote file at the
beginning. A complete file keeps the note as ``<name>.source.json``.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from seqlm.training.checksums import digest_of
from seqlm.training.command_line import escaped
from seqlm.training.heartbeat import beat
from seqlm.training.whole_file import move_into_place, write_whole

from .locks import try_lock
from .pauses import spread
from .remotes import (
    ChangedError,
    FetchError,
    HttpRemote,
    RemoteState,
    S3Remote,
    TransientError,
    s3_remotes,
)
from .source_file import note_once

log = logging.getLogger(__name__)

SHOWN_FILES = 10
"""Largest number of files in a message."""
MAX_ATTEMPTS = 8
"""Number of attempts without a new byte after which a download fails, about two minutes with the waits."""
FIRST_BACKOFF_SECONDS = 1.0
"""Wait after the first failure. It doubles with each further one."""
_BAR_SECONDS = 0.1
"""Time between two updates of the progress bar on a terminal."""
_LOG_LINE_SECONDS = 30.0
"""Time between two progress lines in a log file."""
_ADDRESS_DIGITS = 8
"""Digits of an address's hash in the name of a file, if another file has its own name."""

Remote = HttpRemote | S3Remote


@dataclass(frozen=True)
class SourceKind:
    """Kind of files in a list of sources."""

    name: str
    """Word for the kind in messages, such as FASTA."""
    suffixes: tuple[str, ...]
    """Suffixes of such files below an address. A file that is given by name may have any suffix."""
    sample: Path
    """File of this repository for the word ``sample``."""
    addresses: Mapping[str, str]
    """Addresses of public data sets by the words for them."""
    is_content: Callable[[Path], bool] | None = None
    """Function that returns whether the content of a file in a folder is of this kind, or raises ValueError
    with what it is. None: the suffixes decide."""

    @property
    def words(self) -> str:
        """All words, for messages."""
        return ", ".join(("sample", *self.addresses))

    @property
    def names(self) -> str:
        """Clause about the names of such files, for messages."""
        return f"their names end in {', '.join(self.suffixes)}"

    def has(self, name: str) -> bool:
        """Return whether a file in a folder is of this kind. Hidden files, such as ``._x``, are not."""
        return name.lower().endswith(self.suffixes) and not name.startswith(".")


class BeingFetched(FetchError):
    """Another process downloads the same file."""


def fetch(location: str, downloads: Path, kind: SourceKind) -> list[Path]:
    """Return the local files of a source, after a download if it is remote.

    Args:
        location: entry of a list of sources.
        downloads: folder for downloads.
        kind: kind of the files.

    Raises:
        FetchError: (a ValueError) naming the location, what is wrong with it and what to do.
    """
    if location == "sample":
        if not kind.sample.is_file():
            raise FetchError(
                f"sample: {kind.sample} is missing; restore it with: git checkout -- {kind.sample}"
            )
        return [kind.sample]
    address = kind.addresses.get(location, location)
    scheme, separator, _ = address.partition("://")
    if not separator:
        return _local_files(address, kind)
    remotes: Sequence[Remote]
    match scheme.lower():
        case "https" | "http":
            remotes = [HttpRemote(address)]
        case "s3":
            remotes = s3_remotes(address)
            if address.endswith("/"):
                remotes = _of_kind(remotes, address, kind)
        case _:
            raise FetchError(
                f"{scheme}://... cannot be read; allowed are https:// and s3:// addresses, paths of files "
                f"and folders, {kind.words}"
            )
    return [download(remote, downloads) for remote in remotes]


def _of_kind(remotes: Sequence[S3Remote], prefix: str, kind: SourceKind) -> list[S3Remote]:
    """Return the objects of a kind below a prefix, by their names, and report the others.

    Their content would have to be downloaded first.
    """
    # Consoles mark a folder by an object whose name is empty.
    objects = [remote for remote in remotes if remote.name]
    found = [remote for remote in objects if kind.has(remote.name)]
    others = [one.address.removeprefix(prefix) for one in objects if not kind.has(one.name)]
    left_out = _listed(others)
    if not found:
        reason = f" Left out: {left_out}." if others else ""
        raise FetchError(
            f"{prefix}: no {kind.name} object under this prefix; {kind.names}.{reason}"
        )
    if others:
        note_once(
            f"{prefix}: read {len(found)} {kind.name} objects, left out {len(others)} others, whose names "
            f"end differently: {left_out}; give an object's own address to read it"
        )
    return found


def _listed(names: Sequence[str]) -> str:
    """Return the first names of a list, for a message."""
    more = ", ..." if len(names) > SHOWN_FILES else ""
    return escaped(", ".join(names[:SHOWN_FILES]) + more)


def _local_files(location: str, kind: SourceKind) -> list[Path]:
    path = Path(location).expanduser()
    if path.is_dir():
        return _files_in(path, kind)
    if path.is_file():
        return [path]
    raise FetchError(
        f"{location}: no such file or folder, or it is a pipe or a link to nothing (looked in {Path.cwd()}); "
        f"give a path, an https:// or s3:// address, {kind.words}"
    )


def _files_in(folder: Path, kind: SourceKind) -> list[Path]:
    """Return the files of a kind in a folder, and report the others. Folders inside it are not searched."""
    found: list[Path] = []
    others: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not path.is_file():
            continue
        reason = _other_kind(path, kind)
        if reason is None:
            found.append(path)
        else:
            others.append(f"{path.name} ({reason})")
    listed = _listed(others)
    if not found:
        names = "" if kind.is_content else f"; {kind.names}"
        left_out = f" Left out: {listed}." if others else ""
        raise FetchError(
            f"{folder}: no {kind.name} file in this folder{names} (folders inside it are not searched)."
            f"{left_out}"
        )
    if others:
        note_once(
            f"{folder}: read {len(found)} {kind.name} files, left out {len(others)} others: {listed}"
        )
    return found


def _other_kind(path: Path, kind: SourceKind) -> str | None:
    """Return why a file in a folder is not of a kind; None if it is."""
    if kind.is_content is None:
        return None if kind.has(path.name) else "other suffix"
    try:
        return None if kind.is_content(path) else f"not {kind.name}"
    except ValueError as error:
        return str(error).removeprefix(f"{path} ").removeprefix("is ")


def local_files(locations: Iterable[str | None], kind: SourceKind) -> list[str]:
    """Select the locations that are local files, neither URLs nor keywords that stand for one."""
    return [
        location
        for location in locations
        if location
        and location != "sample"
        and location not in kind.addresses
        and "://" not in location
    ]


def download(remote: Remote, downloads: Path) -> Path:
    """Download ``remote`` into ``downloads``, except for the bytes that are there, and return the file.

    Raises:
        FetchError: if the file cannot be fetched whole.
    """
    try:
        downloads.mkdir(parents=True, exist_ok=True)
        target = _place_for(remote, downloads)
        is_stale = target.exists()
        if is_stale and _is_current(remote, target):
            return target
        partial = target.with_name(target.name + ".partial")
        if (lock := try_lock(partial)) is None:
            raise BeingFetched(
                f"{partial} is being written by another process; wait for it, or set data.downloads to "
                "another folder"
            )
        with lock, partial.open("ab") as stream:
            if (
                target.exists() and not is_stale
            ):  # another process completed it before this one had the lock
                partial.unlink()
                return target
            state = _transfer(remote, stream, partial)
            _verify(remote, state, partial)
            # The note comes second: a kill in between costs a new download, never a wrong belief about
            # the file.
            move_into_place(partial, target)
            note = _as_note(remote, state) | {"bytes_on_disk": target.stat().st_size}
            write_whole(_note_path(target, ".source"), json.dumps(note, indent=1))
            _note_path(target, ".partial").unlink(missing_ok=True)
    except OSError as error:
        raise FetchError(
            f"{remote.address}: cannot write to {downloads}: {error.strerror or error}; free space or set "
            "data.downloads to another folder, and run again: bytes that have arrived are kept"
        ) from None
    return target


def _place_for(remote: Remote, downloads: Path) -> Path:
    """Return the path of a download: the file's own name, or one with a hash of its address.

    Raises:
        FetchError: if a file with this name was not downloaded.
    """
    target = downloads / remote.name
    note = _read_note(target, ".source") or _read_note(target, ".partial")
    if note is None and target.exists():
        raise FetchError(
            f"{remote.address}: {target} is in the way and was not downloaded by this program; to use that "
            f"file give {target} as the source, otherwise move it away"
        )
    if note is None or note["address"] == remote.address:
        return target
    digest = hashlib.sha256(remote.address.encode()).hexdigest()[:_ADDRESS_DIGITS]
    return downloads / f"{digest}-{remote.name}"


def _is_current(remote: Remote, target: Path) -> bool:
    """Return whether a file is complete and the remote file still has the state of its note."""
    note = _read_note(target, ".source")
    if note is not None and target.stat().st_size == note["bytes_on_disk"]:
        try:
            state = remote.head()
        except FetchError as error:
            log.warning("%s; using the complete copy at %s unchecked", error, target)
            return True
        if state.validator is not None and _as_note(remote, state).items() <= note.items():
            log.info("%s is already at %s", remote.address, target)
            return True
    log.warning(
        "%s or %s has changed since the download; downloading it again", remote.address, target
    )
    return False


def _transfer(remote: Remote, stream: BinaryIO, partial: Path) -> RemoteState:
    """Append to ``partial`` until it is complete; return the state of the remote file."""
    furthest_bytes = 0
    failures = 0
    while True:
        try:
            state = remote.head()
            offset_bytes = _resume_offset(remote, state, stream, partial)
            _append(remote, state, stream, offset_bytes)
            return state
        except TransientError as error:
            have_bytes = stream.seek(0, os.SEEK_END)
            failures = 1 if have_bytes > furthest_bytes else failures + 1
            if failures == MAX_ATTEMPTS:
                raise FetchError(
                    f"{error}, {failures} times in a row; check the network and run again, bytes that have "
                    "arrived are kept"
                ) from None
            furthest_bytes = max(furthest_bytes, have_bytes)
            if isinstance(error, ChangedError):
                stream.truncate(0)
            seconds = spread(FIRST_BACKOFF_SECONDS * 2 ** (failures - 1))
            log.warning("%s; trying again in %.1f s", error, seconds)
            time.sleep(seconds)


def _resume_offset(remote: Remote, state: RemoteState, stream: BinaryIO, partial: Path) -> int:
    """Return the number of bytes of ``partial`` to keep; drop the others, and update its note."""
    have_bytes = stream.seek(0, os.SEEK_END)
    note = _as_note(remote, state)
    resumable = state.validator is not None and _read_note(partial) == note
    length_bytes = have_bytes if state.length_bytes is None else state.length_bytes
    if have_bytes and (not resumable or have_bytes > length_bytes):
        log.warning(
            "%s has changed since %s was begun, or cannot be resumed; starting again",
            remote.address,
            partial,
        )
        stream.truncate(0)
        have_bytes = 0
    write_whole(_note_path(partial), json.dumps(note, indent=1))
    if have_bytes:
        log.info("%s: continuing after %d bytes", remote.address, have_bytes)
    needed_bytes = length_bytes - have_bytes
    free_bytes = shutil.disk_usage(partial.parent).free
    if needed_bytes > free_bytes:
        raise FetchError(
            f"{remote.address}: {needed_bytes} bytes to download but {free_bytes} free on the disk of "
            f"{partial.parent}; free space or set data.downloads to another disk"
        )
    return have_bytes


def _append(remote: Remote, state: RemoteState, stream: BinaryIO, offset_bytes: int) -> None:
    """Append the rest of the remote file, with a progress bar."""
    if state.length_bytes == offset_bytes and offset_bytes:
        return
    with tqdm(
        total=state.length_bytes,
        initial=offset_bytes,
        desc=escaped(remote.name),
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        mininterval=_BAR_SECONDS if sys.stderr.isatty() else _LOG_LINE_SECONDS,
    ) as bar:
        for chunk in remote.read(offset_bytes, state):
            beat("downloading", slow=True)
            stream.write(chunk)
            bar.update(len(chunk))
    stream.flush()


def _verify(remote: Remote, state: RemoteState, partial: Path) -> None:
    """Compare size and checksum with the published ones, and remove a wrong file.

    Raises:
        FetchError: if they differ.
    """
    problem = _difference(state, partial)
    if problem is not None:
        partial.unlink()
        _note_path(partial).unlink(missing_ok=True)
        raise FetchError(
            f"{remote.address}: {problem}; the file was not kept, run again to download it anew, and report "
            "it to the server's owner if that happens again"
        )
    if state.checksum is None:
        log.warning(
            "%s: no checksum of it is published, so only its length was verified", remote.address
        )
    else:
        log.info(
            "%s: %s agrees with %s",
            remote.address,
            state.checksum.algorithm,
            state.checksum.published_by,
        )


def _difference(state: RemoteState, partial: Path) -> str | None:
    """Return how a file differs from the published size and checksum; None if it does not."""
    size_bytes = partial.stat().st_size
    if state.length_bytes not in (None, size_bytes):
        return f"the server announced {state.length_bytes} bytes and sent {size_bytes}"
    checksum = state.checksum
    if checksum is None:
        return None
    digest = digest_of(partial, checksum.algorithm)
    if digest == checksum.hex_digest:
        return None
    return (
        f"{checksum.algorithm} is {digest}, but {checksum.published_by} says {checksum.hex_digest}"
    )


def _note_path(file: Path, kind: str = "") -> Path:
    return file.with_name(f"{file.name}{kind}.json")


def _as_note(remote: Remote, state: RemoteState) -> dict[str, object]:
    return {
        "address": remote.address,
        "validator": state.validator,
        "length_bytes": state.length_bytes,
    }


def _read_note(file: Path, kind: str = "") -> dict[str, object] | None:
    """Return the note beside a file; None if it is missing or damaged."""
    try:
        note = json.loads(_note_path(file, kind).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return note if isinstance(note, dict) and "address" in note else None
