"""Source files, opened by their content: compression, text encoding and line ends.

``Source`` gives the content of any file that can be read as UTF-8 bytes, and ``open_text`` as text. Errors
name the file.
"""

import codecs
import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import BadGzipFile
from pathlib import Path
from typing import IO, BinaryIO, cast

from .compressions import (
    COMPRESSIONS,
    HEAD_BYTES,
    UnreadableError,
    compression_of,
    refuse_foreign,
)
from .limits import MIB, Limits

WINDOWS = "cp1252"
"""Encoding of text that is not UTF-8: what Windows programs write in Western countries."""
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_READ_BYTES = MIB
_noted: set[str] = set()
"""Notes that this process has printed."""


class Source(io.RawIOBase):
    """Content of a file, unpacked, in UTF-8 and without a byte order mark, read from beginning to end.

    Line ends CR become LF. CRLF stays.

    Args:
        path: path of the file.
        raw: stream of the file as it lies on disk; by default, the file is opened.
        max_line_bytes: length of a line above which reading stops, within 1 MiB; None sets no bound.

    Raises:
        UnreadableError: (a ValueError) if the content is of a kind that cannot be read.
        ValueError: if the compressed data are damaged, or a line is too long.
    """

    def __init__(
        self,
        path: Path,
        raw: io.RawIOBase | None = None,
        *,
        max_line_bytes: int | None = None,
    ) -> None:
        self._path = path
        self._max_line_bytes = max_line_bytes
        self._line_bytes = 0
        """Bytes since the last newline."""
        with reading(path):
            self._raw = path.open("rb", buffering=0) if raw is None else raw
            # Kept, because it closes the file when it is collected, and an archive has another stream.
            self._packed = io.BufferedReader(self._raw, _READ_BYTES)
            self._compression = compression_of(self._packed.peek(HEAD_BYTES)[:HEAD_BYTES])
        self._content: IO[bytes] = self._packed
        if self._compression is not None:
            with self._refusing():
                self._content = self._compression.open(cast("BinaryIO", self._packed), path)
        first = self._next()
        refuse_foreign(path, first[:HEAD_BYTES], self._compression)
        self._text = _Text(path, first)
        self._pending = self._text.of(first)
        self._begin = 0
        """Number of bytes of ``_pending`` that have been read."""

    @property
    def compression(self) -> str | None:
        """Name of the compression; None for a plain file."""
        return None if self._compression is None else self._compression.name

    @property
    def encoding(self) -> str:
        """Encoding of the text that has been read."""
        return self._text.encoding

    def readable(self) -> bool:
        return True

    def peek(self) -> bytes:
        """Return the beginning of the rest, up to 1 MiB, which stays to be read; empty at the end."""
        self._fill()
        return self._pending[self._begin :]

    def read(self, size: int = -1) -> bytes:
        """Return up to ``size`` bytes, by default the whole rest; none only at the end."""
        if size < 0:
            return b"".join(iter(lambda: self.read(_READ_BYTES), b""))
        self._fill()
        data = self._pending[self._begin : self._begin + size]
        self._begin += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()

    def _fill(self) -> None:
        """Get the next piece of the text if the last one has been read."""
        if self._begin == len(self._pending):
            self._pending = self._more()
            self._begin = 0

    def _more(self) -> bytes:
        """Return the next text; empty at the end."""
        while True:
            data = self._next()
            text = self._text.of(data)
            if self._max_line_bytes is not None:
                self._check_line(text, self._max_line_bytes)
            if text or not data:
                return text

    def _check_line(self, text: bytes, longest: int) -> None:
        """Refuse a line of more than ``longest`` bytes.

        Args:
            text: next piece of the text.
            longest: length of the longest line that is read.
        """
        newline = text.rfind(b"\n")
        if newline < 0:
            self._line_bytes += len(text)
        else:
            self._line_bytes = len(text) - newline - 1
        if self._line_bytes > longest:
            raise ValueError(
                f"{self._path} has a line of more than {longest:,} bytes; check that it is the right file, "
                "and divide the line"
            )

    def _next(self) -> bytes:
        """Return the next bytes of the content; none at the end."""
        with self._refusing(), reading(self._path):
            return self._content.read(_READ_BYTES)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Name the file in errors of the block, which unpacks it."""
        if self._compression is None:
            yield
            return
        try:
            yield
        except UnreadableError as error:
            raise UnreadableError(f"{self._path} is {error}") from None
        except self._compression.errors() as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk failed
            raise _damaged(self._path, self._compression.name, error) from None


class _Text:
    """Conversion of a file's text to UTF-8, piece by piece.

    Text is UTF-16 if it has a byte order mark of it, and else UTF-8 up to the first piece that is not.
    Windows-1252 then serves for the rest, which is reported once: a file is never both.

    Args:
        path: file, for messages.
        first: first bytes of the file.

    Raises:
        UnreadableError: if the file is binary.
    """

    def __init__(self, path: Path, first: bytes) -> None:
        self._path = path
        self._decoder: codecs.IncrementalDecoder | None = None
        self._is_windows = False
        self._held = b""
        """Bytes at the end of the last piece that begin a character."""
        self._has_mark = first.startswith(codecs.BOM_UTF8)
        if first.startswith(_UTF16_MARKS):
            self._decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
            note_once(f"{path} is read as UTF-16")
        elif b"\x00" in first:
            raise UnreadableError(
                f"{path} is a binary file, or UTF-16 without a byte order mark; give FASTA or a table, in "
                "UTF-8 if it is text"
            )
        beginning = first if self._decoder is None else first.replace(b"\x00", b"")
        self._has_old_line_ends = b"\r" in beginning and b"\n" not in beginning

    @property
    def encoding(self) -> str:
        """Name of the encoding, as far as the text has been read."""
        if self._decoder is not None:
            return "UTF-16"
        return "Windows-1252" if self._is_windows else "UTF-8"

    def of(self, piece: bytes) -> bytes:
        """Return the next piece of the text in UTF-8; an empty piece ends the file."""
        if self._decoder is not None:
            data = self._decoder.decode(piece, final=not piece).encode()
        else:
            data = self._utf8(self._held + piece, is_last=not piece)
        if self._has_mark:
            data = data.removeprefix(codecs.BOM_UTF8)
            self._has_mark = False
        return data.replace(b"\r", b"\n") if self._has_old_line_ends else data

    def _utf8(self, data: bytes, *, is_last: bool) -> bytes:
        self._held = b""
        if data.isascii():
            return data
        if not self._is_windows:
            try:
                data.decode()
            except UnicodeDecodeError as error:
                is_cut = error.reason == "unexpected end of data" and not is_last
                if is_cut:
                    self._held = data[error.start :]
                    return data[: error.start]
                self._is_windows = True
                note_once(f"{self._path} is read as Windows-1252, because it is not UTF-8")
        return data.decode(WINDOWS, errors="replace").encode() if self._is_windows else data


def note_once(text: str) -> None:
    """Print a note about a file once, although commands read files several times and in several processes."""
    is_first = os.environ.get("RANK", "0") == "0"
    if is_first and text not in _noted:
        print(f"note: {text}", file=sys.stderr)
    _noted.add(text)


@contextmanager
def open_text(
    path: Path, newline: str, max_line_bytes: int | None = Limits.record_bytes
) -> Iterator[IO[str]]:
    """Open a file of text, which is unpacked and decoded while the block reads it.

    Args:
        path: path of the file.
        newline: line ends, as for ``open``.
        max_line_bytes: length of a line above which reading stops; None sets no bound.

    Raises:
        ValueError: if the file is of a kind that cannot be read, or its compressed data are damaged.
    """
    source = Source(path, max_line_bytes=max_line_bytes)
    buffered = io.BufferedReader(source, _READ_BYTES)
    with io.TextIOWrapper(buffered, "utf-8", newline=newline) as stream:
        yield stream


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Add the name of the file to a system error of the block; that of a failing disk lacks it."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@dataclass(frozen=True)
class Beginning:
    """Beginning of a file's text."""

    text: str
    """Up to 1 MiB of the text."""
    is_whole: bool
    """Whether this is all of the text. Otherwise, the last line may be cut off."""


def beginning_of(path: Path) -> Beginning:
    """Return the beginning of a file's text, by which its format is recognised.

    Raises:
        ValueError: if the content cannot be read.
    """
    with Source(path) as source:
        beginning = source.peek()
        source.read(len(beginning))
        is_whole = not source.peek()
    return Beginning(beginning.decode(errors="replace"), is_whole)


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed."""
    with reading(path), path.open("rb") as file:
        return compression_of(file.read(HEAD_BYTES)) is not None


def _damaged(path: Path, compression: str, error: Exception) -> ValueError:
    """Return an error that explains what is wrong with a compressed file."""
    if compression == "gzip":
        return _damaged_gzip(path)
    if isinstance(error, EOFError):
        return ValueError(f"{path} is a truncated {compression} file; fetch it again")
    return ValueError(f"{path} is a damaged {compression} file ({error}); fetch it again")


def _damaged_gzip(path: Path) -> ValueError:
    """Return an error that explains what is wrong with a gzip file.

    Python's module finds the reason, because isal misreads bytes behind the end.
    """
    with path.open("rb") as file:
        magic = COMPRESSIONS["gzip"].magic
        if file.read(len(magic)) != magic:
            return ValueError(f"{path} changed while it was read; fetch it again")
    try:
        with gzip.open(path, "rb") as stream:
            while stream.read(_READ_BYTES):
                pass
    except EOFError:
        return ValueError(f"{path} is a truncated gzip file; fetch it again")
    except (BadGzipFile, zlib.error) as error:
        if str(error).startswith("Not a gzipped file"):
            return ValueError(
                f"{path} has other bytes behind its gzip data; remove them or fetch it again"
            )
        return ValueError(f"{path} is a damaged gzip file ({error}); fetch it again")
    return ValueError(f"{path} changed while it was read; fetch it again")
