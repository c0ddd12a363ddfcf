"""Source files: gzip by the fastest reader there is, and errors that name the file."""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import BadGzipFile
from pathlib import Path
from typing import IO, Any, cast

GZIP_MAGIC = b"\x1f\x8b"
_READ_BYTES = 1 << 20


def open_gzip(file: Any) -> IO[bytes]:
    """Open a gzip file (path or stream) for reading, by isal if it is there: it is faster than gzip."""
    try:
        from isal import igzip
    except ModuleNotFoundError:
        return gzip.open(file, "rb")
    return cast("IO[bytes]", igzip.open(file, "rb"))


@contextmanager
def open_text(path: Path, newline: str) -> Iterator[IO[str]]:
    """Open a file of UTF-8 text, plain or gzip, which is unpacked as it is read.

    A byte order mark, as spreadsheets write, is left out.

    Raises:
        ValueError: if the block reads what is not UTF-8, or a damaged gzip file.
    """
    try:
        with reading(path), path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
            file.seek(0)
            stream = io.TextIOWrapper(open_gzip(file) if packed else file, "utf-8-sig", newline=newline)
            with stream:
                yield stream
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except gzip_errors():
        raise gzip_problem(path) from None


def gzip_errors() -> tuple[type[Exception], ...]:
    """Return what reading a damaged gzip file raises. isal has an error of its own for some damages."""
    isal = sys.modules.get("isal.igzip_lib")
    return (EOFError, BadGzipFile, zlib.error, *([isal.IsalError] if isal else []))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file in a system error of the block: the error of a failing disk has no name."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def gzip_problem(path: Path) -> ValueError:
    """Return what is wrong with a gzip file. Python's module says so: isal mistakes bytes behind the end."""
    with path.open("rb") as file:
        if file.read(2) != GZIP_MAGIC:
            return ValueError(f"{path} is not gzip; rename it if it is plain text")
    try:
        with gzip.open(path, "rb") as stream:
            while stream.read(_READ_BYTES):
                pass
    except EOFError:
        return ValueError(f"{path} is a truncated gzip file; fetch it again")
    except (BadGzipFile, zlib.error) as error:
        if str(error).startswith("Not a gzipped file"):
            return ValueError(f"{path} has other bytes behind its gzip data; remove them or fetch it again")
        return ValueError(f"{path} is a damaged gzip file ({error}); fetch it again")
    return ValueError(f"{path} changed while it was read; fetch it again")
