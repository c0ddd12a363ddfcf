"""Download a file that versions.json pins, and verify it: ``download.py VERSIONS NAME TARGET``.

Standard library only, because image builds run this with the base image's Python.
"""

import hashlib
import json
import os
import sys
import time
import urllib.request
from pathlib import Path

ATTEMPTS = 5
FIRST_PAUSE_SECONDS = 2.0
"""Pause after the first attempt. It doubles after each attempt: half a minute in all."""
TIMEOUT_SECONDS = 60.0
"""Time limit without data, not for the whole file."""
BLOCK_BYTES = 1 << 20


def main(versions: Path, name: str, target: Path) -> None:
    """Write the file if it has the pinned SHA-256.

    Args:
        versions: versions.json.
        name: name of the file in versions.json.
        target: path of the file, which is written whole or not at all.

    Raises:
        ValueError: if the file has another SHA-256. Another attempt would not help.
        OSError: if no attempt succeeds.
    """
    pinned = json.loads(versions.read_text())[name]
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            found = _fetch(pinned["url"], partial)
            break
        except OSError as error:
            print(
                f"{pinned['url']}: attempt {attempt} of {ATTEMPTS}: {error}",
                file=sys.stderr,
                flush=True,
            )
            if attempt == ATTEMPTS:
                raise
            time.sleep(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
    if found != pinned["sha256"]:
        partial.unlink()
        raise ValueError(
            f"{pinned['url']}: SHA-256 is {found}, {versions.name} pins {pinned['sha256']}; "
            "do not use the file. If a new version is meant, change version, url and sha256 together"
        )
    os.replace(partial, target)


def _fetch(url: str, target: Path) -> str:
    """Download a file and return its SHA-256."""
    digest = hashlib.sha256()
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response,
        target.open("wb") as file,
    ):
        length = response.headers.get("Content-Length")
        while block := response.read(BLOCK_BYTES):
            digest.update(block)
            file.write(block)
        if length is not None and file.tell() != int(length):
            raise OSError(f"ended after {file.tell()} of {length} bytes")
    return digest.hexdigest()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
