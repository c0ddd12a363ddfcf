"""Readers of source files, plain or gzip, with errors that name the file."""

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
    """Open a gzip file (path or stream) for reading, with isal if it is installed, because it is faster."""
    try:
        from isal import igzip
    except ModuleNotFoundError:
        return gzip.open(file, "rb")
    return cast("IO[bytes]", igzip.open(file, "rb"))


@contextmanager
def open_text(path: Path, newline: str) -> Iterator[IO[str]]:
    """Open a file of UTF-8 text, plain or gzip, which is unpacked while the block reads it.

    A byte order mark, which spreadsheets write, is left out.

    Args:
        path: path of the file.
        newline: line ends, as for ``open``.

    Raises:
        ValueError: if the block reads bytes that are not UTF-8, or a damaged gzip file.
    """
    try:
        with reading(path), path.open("rb") as file:
            is_gzip = file.read(2) == GZIP_MAGIC
            file.seek(0)
            binary = open_gzip(file) if is_gzip else file
            with io.TextIOWrapper(binary, "utf-8-sig", newline=newline) as stream:
                yield stream
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except gzip_errors():
        raise gzip_problem(path) from None


def gzip_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a damaged gzip file. isal raises an error of its own for some damages."""
    errors: list[type[Exception]] = [EOFError, BadGzipFile, zlib.error]
    isal = sys.modules.get("isal.igzip_lib")
    if isal is not None:
        errors.append(isal.IsalError)
    return tuple(errors)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Add the name of the file to a system error of the block; that of a failing disk lacks it."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def gzip_problem(path: Path) -> ValueError:
    """Return an error that explains what is wrong with a gzip file.

    Python's module finds the reason, because isal misreads bytes behind the end.
    """
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
            return ValueError(
                f"{path} has other bytes behind its gzip data; remove them or fetch it again"
            )
        return ValueError(f"{path} is a damaged gzip file ({error}); fetch it again")
    return ValueError(f"{path} changed while it was read; fetch it again")
