"""Standard output and error of a run, which may be a full disk or a closed pipe.

The record of a run is in its folder, so a line that cannot be shown must not end hours of work. Standard
library only.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast


@contextlib.contextmanager
def lines_may_be_lost() -> Iterator[None]:
    """Drop what standard output and error do not take during the block, instead of failing.

    After a line has been lost, what comes after the block is dropped as well. Otherwise Python would end with
    status 120 if it cannot write what is left.
    """
    output = _Lossy(sys.stdout)
    errors = _Lossy(sys.stderr)
    sys.stdout = cast(TextIO, output)
    sys.stderr = cast(TextIO, errors)
    try:
        yield
    finally:
        sys.stdout = output.stream
        sys.stderr = errors.stream
        for lossy in (output, errors):
            lossy.end()


class _Lossy:
    """Text stream that drops what it cannot write.

    Args:
        stream: stream that is written to.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._has_failed = False

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError:
            self._has_failed = True
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError:
            self._has_failed = True

    def end(self) -> None:
        """Write what is left, or drop it and all that follows."""
        self.flush()
        if self._has_failed:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.stream.fileno())
            os.close(nothing)
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
