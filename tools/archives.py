"""Downloads of files with a known checksum, and safe unpacking of archives."""

import hashlib
import sys
import tarfile
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path, PurePosixPath

from seqlm.training.whole_file import move_into_place

CHUNK_BYTES = 1 << 20
SECONDS_WITHOUT_DATA = 60
"""Timeout of a stalled transfer."""


def download(url: str, path: Path, sha256: str, *, unreached: str, changed: str) -> None:
    """Download a file; keep it only if it is complete and has the checksum.

    Args:
        url: address of the file.
        path: destination.
        sha256: expected checksum.
        unreached: advice for a failed download.
        changed: possible causes of another checksum, and advice.

    Raises:
        ValueError: if the download fails, or the file has another checksum.
    """
    digest = hashlib.sha256()
    received = 0
    part = path.with_name(f"{path.name}.part")
    try:
        with (
            urllib.request.urlopen(url, timeout=SECONDS_WITHOUT_DATA) as response,
            part.open("wb") as file,
        ):
            total = int(response.headers.get("Content-Length") or 0)
            while chunk := response.read(CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                received += len(chunk)
                _show(path.name, received, total)
            if received < total:
                raise ConnectionError(f"received {received} of {total} bytes")
        if digest.hexdigest() == sha256:
            move_into_place(part, path)
    except urllib.error.HTTPError as error:
        raise ValueError(f"{url} answers {error.code} {error.reason}; {unreached}") from None
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ValueError(f"{url} could not be fetched: {reason}; {unreached}") from None
    finally:
        part.unlink(missing_ok=True)
    if (found := digest.hexdigest()) != sha256:
        raise ValueError(f"{url} has SHA-256 {found} ({received} bytes), not {sha256}; {changed}")


def _show(name: str, received: int, total: int) -> None:
    """Print the progress of a download to a terminal."""
    if sys.stderr.isatty():
        of = f" of {total / 1e6:.0f}" if total else ""
        end = "\n" if received == total else ""
        print(f"\r{name}: {received / 1e6:.0f}{of} MB", end=end, file=sys.stderr)


def extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack the files and folders of an archive, and nothing outside ``folder``.

    Python has a filter for this from 3.11.4 on. Debian 12 has 3.11.2, for which this function checks the
    entries.

    Raises:
        tarfile.TarError: if an entry is outside the folder or a device; without the filter, also for a link.
    """
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, filter="data")
        return
    for member in tar.getmembers():
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
            raise tarfile.ExtractError(
                f"{member.name} is not a file or folder inside the target folder"
            )
        member.mode &= 0o755
    tar.extractall(folder)
