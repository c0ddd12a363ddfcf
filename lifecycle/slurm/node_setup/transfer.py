"""One try to copy a file here, from the internet or from S3."""

from __future__ import annotations

import errno
import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

from node_setup.failure import SetupError
from node_setup.host import Host

CHUNK_BYTES = 1 << 20
SECONDS_WITHOUT_DATA = 60
SECONDS_PER_TRY = 900
"""Also of a server that sends a byte now and then, which no time-out of the connection ends."""
PASSING_STATUSES = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses that say to come back later."""
OPEN_THE_WAY = (
    "give the node a way out (NAT gateway, or a proxy in https_proxy); in a closed network set "
    "node_setup.downloads: artifact_bucket and run `make mirror-downloads`"
)


class PassingFault(SetupError):
    """A failure that may be gone at the next try."""


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    """Follow to another place, but never to one whose answers anybody on the way could write."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _require_https(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def from_internet(url: str, target: Path) -> None:
    """Copy over HTTPS, through the proxy of the environment if it names one.

    Raises:
        PassingFault: if another try may help.
        SetupError: if it will not.
    """
    _require_https(url)
    opener = urllib.request.build_opener(_HttpsOnly())
    try:
        with opener.open(url, timeout=SECONDS_WITHOUT_DATA) as response:
            _copy(response, target, url)
    except urllib.error.HTTPError as error:
        kind = PassingFault if error.code in PASSING_STATUSES else SetupError
        raise kind(
            f"{url} answers {error.code} {error.reason}",
            "open the URL on another machine: if it is gone, downloads.json needs another version; if it is "
            "there, a proxy or firewall refuses it",
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise PassingFault(
            f"{url} cannot be reached: {reason or type(error).__name__}", OPEN_THE_WAY
        ) from None


def from_s3(host: Host, uri: str, target: Path, *, region: str) -> None:
    """Copy an object with the aws command, which HyperPod's image brings.

    Raises:
        PassingFault: if another try may help.
        SetupError: if it will not.
    """
    done = host.try_run(
        *("aws", "s3", "cp", "--only-show-errors", "--region", region, uri, target),
        timeout_seconds=SECONDS_PER_TRY,
    )
    if done.status == 0:
        return
    if "No space left on device" in done.said:
        raise _full(str(target.parent))
    # S3 tells who may not list a bucket that a missing object is forbidden.
    if any(sign in done.said for sign in ("404", "403", "NoSuchKey", "AccessDenied", "NoSuchBucket")):
        raise SetupError(
            f"{uri} is missing, or not for this node's role: {done.said}",
            "run `make mirror-downloads` with this cluster's file, on a machine with internet access",
        )
    raise PassingFault(
        f"{uri} could not be copied: {done.said or f'aws ended with {done.status}'}",
        "check the S3 endpoint of the network, and `sudo aws s3 ls` on the node",
    )


def disk_error(error: OSError, where: str) -> SetupError:
    """What a failed write to the disk means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _full(where)
    return SetupError(
        f"cannot write to {where}: {error.strerror or error}", "look at `dmesg` and `findmnt` on the node"
    )


def _full(where: str) -> SetupError:
    return SetupError(
        f"the disk is full: no space left for {where}",
        f"free some (`df -h {where}`, `du --one-file-system --max-depth=2 / | sort --numeric-sort | tail`), "
        "or give the group a larger ebs_gib",
    )


def _require_https(url: str) -> None:
    if not url.startswith("https://"):
        raise SetupError(f"{url} is no https:// address", "downloads.json takes HTTPS alone: correct the URL")


def _copy(response: Any, target: Path, url: str) -> None:
    """Write the body to the file, and raise PassingFault if it ends early or takes too long."""
    deadline = time.monotonic() + SECONDS_PER_TRY
    expected = response.headers.get("Content-Length")
    received = 0
    try:
        # Without a buffer, whose last bytes would fail again when it is closed.
        file = target.open("wb", buffering=0)
    except OSError as error:
        raise disk_error(error, str(target.parent)) from None
    with file:
        while chunk := response.read1(CHUNK_BYTES):
            received += len(chunk)
            try:
                rest = memoryview(chunk)
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError as error:
                raise disk_error(error, str(target.parent)) from None
            if time.monotonic() > deadline:
                raise PassingFault(
                    f"{url}: {received} bytes in {SECONDS_PER_TRY} s, then given up", OPEN_THE_WAY
                )
    # http.client takes a connection that is cut for the end of the body.
    if expected is not None and received != int(expected):
        raise PassingFault(f"{url} ended after {received} of {expected} bytes", OPEN_THE_WAY)
