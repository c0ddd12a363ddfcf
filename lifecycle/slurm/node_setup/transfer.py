"""One attempt to copy a file from the internet or from S3."""

from pathlib import Path

from node_setup.failure import SetupError
from node_setup.host import Host

SECONDS_WITHOUT_DATA = 60
SECONDS_PER_TRY = 900
"""Time limit of one try, also for a server that sends so slowly that no connection timeout applies."""
CURL_PROTOCOL, CURL_HTTP_ERROR, CURL_CANNOT_WRITE = 1, 22, 23
"""Exit statuses with causes other than a failing network."""
PASSING_STATUSES = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses after which another try may succeed."""
OPEN_THE_WAY = (
    "give the node a way out (NAT gateway, or a proxy in https_proxy); in a closed network set "
    "node_setup.downloads: artifact_bucket and run `make mirror-downloads`"
)


class PassingFault(SetupError):
    """Failure after which another try may succeed."""


def from_internet(host: Host, url: str, target: Path) -> None:
    """Copy over HTTPS, through the proxy of the environment if it names one.

    Raises:
        PassingFault: if another try may help.
        SetupError: if it will not.
    """
    done = host.try_run(
        # HTTPS only, also after redirects: others on the route could change unencrypted answers.
        *("curl", "--silent", "--show-error", "--fail", "--location", "--proto", "=https"),
        *("--connect-timeout", str(SECONDS_WITHOUT_DATA), "--max-time", str(SECONDS_PER_TRY)),
        *("--speed-time", str(SECONDS_WITHOUT_DATA), "--speed-limit", "1"),
        *("--write-out", "%{http_code}", "--output", target, url),
        timeout_seconds=SECONDS_PER_TRY + 60,
    )
    if done.status == 0:
        return
    if done.status == CURL_PROTOCOL:
        raise SetupError(
            f"{url} is no https:// address, or leads to one that is none: {done.said}",
            "downloads.json takes HTTPS alone: correct the URL",
        )
    if done.status == CURL_CANNOT_WRITE:
        raise cannot_write(str(target.parent), done.said)
    # 000 means that a proxy has refused.
    if done.status == CURL_HTTP_ERROR and done.output != "000":
        kind = PassingFault if int(done.output) in PASSING_STATUSES else SetupError
        raise kind(
            f"{url} answers {done.output}",
            "open the URL on another machine: if it is gone, downloads.json needs another version; if it is "
            "there, a proxy or firewall refuses it",
        )
    raise PassingFault(f"{url} cannot be reached: {done.said}", OPEN_THE_WAY)


def from_s3(host: Host, uri: str, target: Path, *, region: str) -> None:
    """Copy an object with the aws command, which HyperPod's image has.

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
        raise cannot_write(str(target.parent), done.said)
    # S3 reports a missing object as forbidden to callers who may not list the bucket.
    if any(sign in done.said for sign in ("404", "403", "NoSuchKey", "AccessDenied", "NoSuchBucket")):
        raise SetupError(
            f"{uri} is missing, or not for this node's role: {done.said}",
            "run `make mirror-downloads` with this cluster's file, on a machine with internet access",
        )
    raise PassingFault(
        f"{uri} could not be copied: {done.said or f'aws ended with {done.status}'}",
        "check the S3 endpoint of the network, and `sudo aws s3 ls` on the node",
    )


def cannot_write(folder: str, why: str) -> SetupError:
    """Return the error for a failed write to the disk."""
    return SetupError(
        f"cannot write to {folder}, such as when the disk is full: {why}",
        f"free some space (`df -h {folder}`, `du --one-file-system --max-depth=2 / | sort --numeric-sort | "
        "tail`), or give the group a larger ebs_gib; if there is space, look at `dmesg` and `findmnt`",
    )
