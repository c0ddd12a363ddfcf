"""Downloads from the internet or this cluster's bucket, used only after their checksum was verified.

``downloads.json`` beside the scripts is the table of all downloads.
"""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.node import Node, log

CACHE = "/var/cache/node-setup"
RECORDS = "/var/lib/node-setup/downloads"
"""Records of installed programs and their archives, with one file per name."""
PAUSES_SECONDS = (5, 10, 20, 40)
"""Pauses after each try but the last, because the network or a proxy may still be starting."""
DOWNLOADS_PREFIX = "downloads"
"""Prefix in the artifact bucket, which ``make mirror-downloads`` fills."""
SECONDS_WITHOUT_DATA = 60
"""Time after which curl gives up on a server that sends nothing."""
SECONDS_PER_TRY = 900
"""Time limit of one try, also for a server that sends so slowly that no connection timeout applies."""
CHUNK_BYTES = 1 << 20
# Exit statuses of curl with causes other than a failing network.
CURL_PROTOCOL = 1
CURL_HTTP_ERROR = 22
CURL_CANNOT_WRITE = 23
PASSING_STATUSES = (408, 425, 429, 500, 502, 503, 504)
"""HTTP statuses after which another try may succeed."""
MISSING_OBJECT = ("404", "403", "NoSuchKey", "AccessDenied", "NoSuchBucket")
"""Parts of the aws command's messages for a missing object, or for one that the node's role may not read."""
ALLOW_INTERNET = (
    "give the node internet access (NAT gateway, or a proxy in https_proxy); in a closed network set "
    "node_setup.downloads: artifact_bucket and run `make mirror-downloads`"
)


class PassingFault(SetupError):
    """Failure after which another try may succeed."""


@dataclass(frozen=True)
class Download:
    name: str
    version: str
    architecture: str
    """Architecture, as ``uname --machine`` prints it."""
    url: str
    sha256: str

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Image:
    """A container image."""

    name: str
    version: str
    architectures: tuple[str, ...]
    reference: str
    """Registry, repository and the digest of its contents."""

    @property
    def digest(self) -> str:
        return self.reference.rsplit("@", 1)[1]


def find_download(node: Node, name: str) -> Download:
    """Return the download for this node's architecture.

    Raises:
        SetupError: if the table has none for it.
    """
    machine = platform.machine()
    found = [Download(**entry) for entry in _table(node)["files"] if entry["name"] == name]
    for download in found:
        if download.architecture == machine:
            return download
    known = ", ".join(download.architecture for download in found) or "no architecture"
    raise SetupError(
        f"downloads.json has {name} for {known}, and this node is {machine}",
        "use an instance type of a listed architecture, or add its URL and checksum to downloads.json",
    )


def find_image(node: Node, name: str) -> Image:
    """Return the image of this name.

    Raises:
        SetupError: if it does not support this node's architecture.
    """
    entry = next(entry for entry in _table(node)["images"] if entry["name"] == name)
    image = Image(**{**entry, "architectures": tuple(entry["architectures"])})
    if platform.machine() not in image.architectures:
        raise SetupError(
            f"image {image.reference} is for {', '.join(image.architectures)}, and this node is "
            f"{platform.machine()}",
            "use an instance type of a listed architecture",
        )
    return image


def fetch(node: Node, name: str) -> Path:
    """Download a file of the table and verify its checksum; the caller deletes it after use.

    Raises:
        SetupError: if it cannot be downloaded, or its checksum differs from the table's.
    """
    download = find_download(node, name)
    kept = node.host.path(CACHE) / download.file_name
    if kept.is_file() and sha256_of(kept) == download.sha256:
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_name(f"{kept.name}.partial")
    try:
        _transfer(node, download, partial)
        _check(node, download, partial)
        os.replace(partial, kept)
    finally:
        # It exists only after a failure. Each try starts from the beginning, so it is useless.
        partial.unlink(missing_ok=True)
    return kept


def install_binaries(node: Node, name: str, binaries: tuple[str, ...]) -> bool:
    """Install programs of an archive in /usr/local/bin, and return whether they changed.

    Raises:
        SetupError: from ``fetch``, or if the archive lacks one of them.
    """
    download = find_download(node, name)
    record = node.host.path(f"{RECORDS}/{name}.json")
    with contextlib.suppress(OSError, ValueError):
        if json.loads(record.read_text()) == _installed(node, download, binaries):
            return False
    archive = fetch(node, name)
    try:
        for binary in binaries:
            _extract(node, archive, binary)
    except tarfile.TarError as error:
        raise SetupError(
            f"{download.file_name} has the right checksum but is no tar archive: {error}",
            "downloads.json names a file of another kind: correct its URL",
        ) from None
    except OSError as error:
        raise _cannot_write("/usr/local/bin", str(error)) from None
    finally:
        archive.unlink(missing_ok=True)
    node.host.write_text(
        f"{RECORDS}/{name}.json", json.dumps(_installed(node, download, binaries), indent=2) + "\n"
    )
    node.changed(f"{name} {download.version}")
    return True


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _table(node: Node) -> dict[str, Any]:
    return json.loads((node.files / "downloads.json").read_text())


def _transfer(node: Node, download: Download, partial: Path) -> None:
    """Download with retries; raise the SetupError of the last try, or of the first permanent fault."""
    for pause in (*PAUSES_SECONDS, None):
        try:
            if node.settings.downloads == "internet":
                _from_internet(node.host, download.url, partial)
            else:
                bucket = node.deployment.artifact_bucket
                uri = f"s3://{bucket}/{DOWNLOADS_PREFIX}/{download.file_name}"
                _from_s3(node.host, uri, partial, region=node.settings.region)
            return
        except PassingFault as fault:
            if pause is None:
                tries = len(PAUSES_SECONDS) + 1
                raise SetupError(f"{fault.problem}; tried {tries} times", fault.remedy) from None
            log(f"  {fault.problem}; trying again in {pause} s")
            node.host.sleep(pause)


def _check(node: Node, download: Download, partial: Path) -> None:
    found = sha256_of(partial)
    if found == download.sha256:
        return
    source = download.url
    remedy = (
        "something between the node and its source, such as a proxy, changes files; or the release was "
        "replaced: find out before correcting downloads.json"
    )
    if node.settings.downloads != "internet":
        source = f"{download.file_name} in bucket {node.deployment.artifact_bucket}"
        remedy = "someone changed the copy: delete it there, and run `make mirror-downloads` again"
    raise SetupError(
        f"{source} has another SHA-256 than downloads.json says: {found}, expected {download.sha256}; "
        "it was not installed",
        remedy,
    )


def _installed(node: Node, download: Download, binaries: tuple[str, ...]) -> dict[str, Any]:
    """Return the archive's checksum and those of the installed programs, including ones installed by hand."""
    sums: dict[str, str | None] = {}
    for binary in binaries:
        program = node.host.path(f"/usr/local/bin/{binary}")
        sums[binary] = sha256_of(program) if program.is_file() else None
    return {"version": download.version, "archive": download.sha256, "programs": sums}


def _extract(node: Node, archive: Path, binary: str) -> None:
    """Install one program by its name in the top folder. The archive's own paths are never written."""
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = member.name.removeprefix("./").split("/")
            if len(parts) == 2 and parts[1] == binary and member.isreg():
                content = tar.extractfile(member)
                assert content is not None
                with node.host.replaced(f"/usr/local/bin/{binary}", mode=0o755) as file:
                    shutil.copyfileobj(content, file)
                return
    raise SetupError(
        f"{archive.name} has no program {binary}",
        "downloads.json names another file: correct its URL",
    )


def _from_internet(host: Host, url: str, target: Path) -> None:
    """Copy over HTTPS, through the proxy of the environment if it names one.

    Raises:
        PassingFault: if another try may help.
        SetupError: if it will not.
    """
    done = host.try_run(
        # HTTPS only, also after redirects: others on the route could change unencrypted answers.
        "curl",
        "--silent",
        "--show-error",
        "--fail",
        "--location",
        "--proto",
        "=https",
        "--connect-timeout",
        str(SECONDS_WITHOUT_DATA),
        "--max-time",
        str(SECONDS_PER_TRY),
        "--speed-time",
        str(SECONDS_WITHOUT_DATA),
        "--speed-limit",
        "1",
        "--write-out",
        "%{http_code}",
        "--output",
        target,
        url,
        timeout_seconds=SECONDS_PER_TRY + 60,
    )
    if done.status == 0:
        return
    if done.status == CURL_PROTOCOL:
        raise SetupError(
            f"{url} does not begin with https://, or redirects to an address that does not: {done.said}",
            "only HTTPS is allowed: correct the URL in downloads.json",
        )
    if done.status == CURL_CANNOT_WRITE:
        raise _cannot_write(str(target.parent), done.said)
    # The status 000 means that a proxy has refused.
    if done.status == CURL_HTTP_ERROR and done.output != "000":
        kind = PassingFault if int(done.output) in PASSING_STATUSES else SetupError
        raise kind(
            f"{url} answers {done.output}",
            "open the URL on another machine: if it fails there too, downloads.json needs another version; "
            "otherwise a proxy or firewall refuses it",
        )
    raise PassingFault(f"{url} cannot be reached: {done.said}", ALLOW_INTERNET)


def _from_s3(host: Host, uri: str, target: Path, *, region: str) -> None:
    """Copy an object with the aws command, which HyperPod's image has.

    Raises:
        PassingFault: if another try may help.
        SetupError: if it will not.
    """
    done = host.try_run(
        "aws",
        "s3",
        "cp",
        "--only-show-errors",
        "--region",
        region,
        uri,
        target,
        timeout_seconds=SECONDS_PER_TRY,
    )
    if done.status == 0:
        return
    if "No space left on device" in done.said:
        raise _cannot_write(str(target.parent), done.said)
    # S3 reports a missing object as forbidden if the caller may not list the bucket.
    if any(sign in done.said for sign in MISSING_OBJECT):
        raise SetupError(
            f"{uri} is missing, or this node's role may not read it: {done.said}",
            "run `make mirror-downloads` with this cluster's file, on a machine with internet access",
        )
    raise PassingFault(
        f"{uri} could not be copied: {done.said or f'aws ended with {done.status}'}",
        "check the S3 endpoint of the network, and `sudo aws s3 ls` on the node",
    )


def _cannot_write(folder: str, why: str) -> SetupError:
    """Return the error for a failed write to the disk."""
    return SetupError(
        f"cannot write to {folder}, such as when the disk is full: {why}",
        f"free some space (`df -h {folder}`, `du --one-file-system --max-depth=2 / | sort --numeric-sort | "
        "tail`), or give the group a larger ebs_gib; if there is space, look at `dmesg` and `findmnt`",
    )
