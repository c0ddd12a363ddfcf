"""Compressed files and files that cannot be read, recognised by their first bytes.

``COMPRESSIONS`` and ``FOREIGN`` are the tables. Names of files play no part.
"""

import bz2
import gzip
import lzma
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from gzip import BadGzipFile
from pathlib import Path
from typing import IO, BinaryIO, cast

from .limits import MIB

HEAD_BYTES = 512
"""Number of bytes in which a file's kind is recognised; the mark of a tar archive ends at byte 262."""
MAX_EXPANDED_BYTES = 1024 * MIB
"""Largest size of the member of a zip file, unpacked."""
MAX_EXPANSION = 100
"""Largest ratio of a zip file's member to the file. Text of proteins shrinks to a half, tables to a tenth."""


@dataclass(frozen=True)
class Compression:
    """Way in which a file is compressed."""

    name: str
    """Name of the format, for messages."""
    suffix: str
    """Usual end of the names of such files. Content decides; the name only chooses what is downloaded."""
    magic: bytes
    """First bytes of such a file."""
    open: Callable[[BinaryIO, Path], IO[bytes]]
    """Function from the compressed stream and the path of its file to a stream of the content."""
    errors: Callable[[], tuple[type[Exception], ...]]
    """Function that returns the errors of reading a damaged file."""


def _open_gzip(stream: BinaryIO, path: Path) -> IO[bytes]:
    """Open a gzip stream, with isal if it is installed, because it is faster."""
    try:
        from isal import igzip
    except ModuleNotFoundError:
        return cast("IO[bytes]", gzip.open(stream, "rb"))
    return cast("IO[bytes]", igzip.open(stream, "rb"))


def _gzip_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a damaged gzip file. isal raises an error of its own for some damages."""
    errors: list[type[Exception]] = [EOFError, BadGzipFile, zlib.error]
    isal = sys.modules.get("isal.igzip_lib")
    if isal is not None:
        errors.append(isal.IsalError)
    return tuple(errors)


def _open_bzip2(stream: BinaryIO, path: Path) -> IO[bytes]:
    return cast("IO[bytes]", bz2.open(stream, "rb"))


def _open_xz(stream: BinaryIO, path: Path) -> IO[bytes]:
    return cast("IO[bytes]", lzma.open(stream, "rb"))


def _open_zstandard(stream: BinaryIO, path: Path) -> IO[bytes]:
    import pyarrow as pa  # has a decoder, which Python 3.13 lacks

    return cast("IO[bytes]", pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"))


def _open_zip(stream: BinaryIO, path: Path) -> IO[bytes]:
    return cast("IO[bytes]", _Member(path))  # the directory of an archive is at its end


COMPRESSIONS: Mapping[str, Compression] = {
    one.name: one
    for one in (
        Compression("gzip", ".gz", b"\x1f\x8b", _open_gzip, _gzip_errors),
        Compression("bzip2", ".bz2", b"BZh", _open_bzip2, lambda: (EOFError, OSError, ValueError)),
        Compression("xz", ".xz", b"\xfd7zXZ\x00", _open_xz, lambda: (EOFError, lzma.LZMAError)),
        Compression("zstandard", ".zst", b"\x28\xb5\x2f\xfd", _open_zstandard, lambda: (OSError,)),
        Compression(
            "zip", ".zip", b"PK\x03\x04", _open_zip, lambda: (zipfile.BadZipFile, zlib.error)
        ),
    )
}
"""All compressions by name."""

FOREIGN: Mapping[bytes, str] = {
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive; unpack it, and give the files in it",
    b"Rar!\x1a\x07": "a RAR archive; unpack it, and give the files in it",
    b"PK\x05\x06": "an empty zip archive",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an old Office file, such as .xls; save it as .xlsx or CSV",
    b"%PDF": "a PDF document; give the sequences as FASTA or as a table",
    b"\x89PNG": "a picture; give the sequences as FASTA or as a table",
    b"\x89HDF": "an HDF5 file; export its sequences as FASTA or as a table",
    b"SQLite format 3\x00": "an SQLite database; export its table as CSV",
    b"BAM\x01": "a BAM file, which has nucleotides; give proteins",
    b"<!DOCTYPE html": "a web page; download the file itself",
    b"<!doctype html": "a web page; download the file itself",
    b"<html": "a web page; download the file itself",
}
"""Predicate of the message for a file that begins with these bytes: its kind, and what to do."""
_TAR_MARK = b"ustar"
_TAR_PLACE = 257
"""Place of the mark of a tar archive, from byte 0 on (POSIX.1-1988, ustar header)."""
TAR = "a tar archive; unpack it, and give the files in it"


class UnreadableError(ValueError):
    """The content of a file is of a kind that cannot be read."""


def compression_of(head: bytes) -> Compression | None:
    """Return the compression of a file that begins with ``head``; None for a plain file."""
    for one in COMPRESSIONS.values():
        if head.startswith(one.magic):
            return one
    return None


def refuse_foreign(path: Path, head: bytes, inside: Compression | None = None) -> None:
    """Raise UnreadableError if the content of a file is of a kind that cannot be read.

    Args:
        path: path of the file.
        head: first ``HEAD_BYTES`` bytes of the content, or all of it if it is shorter.
        inside: compression that has been removed from the content.
    """
    what = ""
    if head[_TAR_PLACE:].startswith(_TAR_MARK):
        what = TAR
    for magic, description in FOREIGN.items():
        if head.startswith(magic):
            what = description
    if inside is not None and (again := compression_of(head)) is not None:
        what = f"compressed twice, by {again.name} and then by {inside.name}; unpack it once"
    if what:
        raise UnreadableError(f"{path} is {what}")


class _Member:
    """Content of the only file in a zip archive, read in pieces.

    Args:
        path: path of the archive.

    Raises:
        UnreadableError: if the archive holds no file or several, or an encrypted or too large one.
    """

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path)
        files = [one for one in self._archive.infolist() if _is_content(one)]
        names = ", ".join(one.filename for one in files[:3])
        if len(files) != 1:
            more = ", ..." if len(files) > 3 else ""
            raise UnreadableError(
                f"a zip archive of {len(files)} files ({names}{more}); unpack it, and give the files in it"
            )
        member = files[0]
        if member.flag_bits & 1:
            raise UnreadableError(f"a zip archive with an encrypted file ({names}); unpack it")
        # A small file may be repetitive: the ratio counts from 1 MiB on.
        self._bound = min(MAX_EXPANDED_BYTES, MAX_EXPANSION * member.compress_size + MIB)
        self._read = 0
        self._content = self._archive.open(member)

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes of the content.

        Raises:
            UnreadableError: if the content is larger than the bounds allow, whatever the archive says.
        """
        left = self._bound + 1 - self._read
        data = self._content.read(left if size < 0 else min(size, left))
        self._read += len(data)
        if self._read > self._bound:
            raise UnreadableError(
                f"a zip archive whose content is larger than {MAX_EXPANDED_BYTES // MIB} MiB or than "
                f"{MAX_EXPANSION} times the archive; unpack it"
            )
        return data

    def close(self) -> None:
        self._archive.close()


def _is_content(member: zipfile.ZipInfo) -> bool:
    """Return whether a member is a file of the user; macOS adds its own."""
    name = Path(member.filename)
    return not (
        member.is_dir() or name.parts[0] == "__MACOSX" or name.name in (".DS_Store", "Thumbs.db")
    )
