"""Write a new file, flush it to the server and read it back: write_and_read_back.py PATH.

Users may be able to write to its folder, so the file must be new, and no link is followed. The caller removes
the file.
"""

import os
import secrets
import sys


def main(path: str) -> None:
    written = secrets.token_bytes(32)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.write(handle, written)
    os.fsync(handle)
    # A pipe in its place would block without O_NONBLOCK.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if os.read(handle, len(written) + 1) != written:
        sys.exit("other bytes came back")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError as error:
        sys.exit(str(error))
