"""Small files, which may be of a stranger. Standard library only."""

import errno
import os
import stat
from pathlib import Path

MAX_CONFIG_BYTES = 16 << 20
"""Size limit of files that describe a model or list its files. The largest known index has 4 MB."""


def read_small(path: Path, max_bytes: int) -> str:
    """Return the text of a regular file, which may be of a stranger.

    Raises:
        OSError: if the file is missing, is a folder, a pipe or a device, or is too large.
        UnicodeDecodeError: if it is not UTF-8.
    """
    # A pipe without a writer would wait for one.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device", str(path))
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes:,} bytes", str(path))
    return content.decode("utf-8")
