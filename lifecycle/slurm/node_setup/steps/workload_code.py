"""Training code on the shared file system, with one folder per version, which is always complete."""

import hashlib
import os
import shutil
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path

from node_setup.failure import SetupError
from node_setup.node import Node, log
from node_setup.root_folder import is_roots, root_folder

FOLDER = "workloads"
"""Folder below the mount point of Lustre."""
CURRENT = "current"
"""Link to the deployed version."""
KEPT_VERSIONS = 10
KEPT_DAYS = 30
"""Days after a version was replaced. Jobs submitted with it may wait or run for long."""
SECONDS_FOR_DOWNLOAD = 600
SECONDS_OF_RETRIES = 300
MOST_BYTES = 1 << 26
"""Limit for one file, because each is read whole."""
IGNORED = ("__pycache__", "*.pyc")
"""Files that running the code creates, which are not part of a version."""


def sync(node: Node) -> None:
    """Download the deployed version and point ``current`` to it; earlier versions stay for a while.

    A version's name is the hash of its contents, which is verified.

    Raises:
        SetupError: if the download fails, its hash differs from its name, or users could change the code.
    """
    if not node.facts.is_primary_controller:
        # One node writes what all of them read.
        log("  left to the primary controller")
        return
    with root_folder(node.host, f"{node.settings.shared_path}/{FOLDER}") as folder:
        version = folder / node.deployment.workload_s3_uri.rstrip("/").rsplit("/", 1)[-1]
        if not _is_whole(version):
            _fetch(node, version)
        _lead_to(node, folder / CURRENT, version)
        _remove_old(node, folder, keep=version)


def _is_whole(version: Path) -> bool:
    """Return whether the version exists, is unchanged, and only root can change it.

    Its files are checked before they are read. Users could have put links, pipes or endless files into it.
    """
    if not os.path.lexists(version):
        return False
    found = [path.lstat() for path in (version, *version.rglob("*"))]
    is_safe = all(is_roots(status) and status.st_size <= MOST_BYTES for status in found)
    return is_safe and content_hash(version) == version.name


def content_hash(folder: Path) -> str:
    """Return 16 hex digits that depend on relative paths and bytes, like the prefix of the upload."""
    files = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    digest = hashlib.sha256()
    for name in sorted(files):
        if any(fnmatch(part, ignored) for part in name.split("/") for ignored in IGNORED):
            continue
        data = files[name].read_bytes()
        digest.update(f"{len(name)} {len(data)} {name}".encode() + data)
    return digest.hexdigest()[:16]


def _fetch(node: Node, version: Path) -> None:
    """Download beside the final name and rename, so that no one sees an incomplete version."""
    partial = Path(tempfile.mkdtemp(prefix=f".{version.name}.partial-", dir=version.parent))
    try:
        node.host.wait_for(
            lambda: _download(node, partial, version.name),
            timeout_seconds=SECONDS_OF_RETRIES,
            what=f"the training code cannot be downloaded from {node.deployment.workload_s3_uri}",
            remedy="`make deploy` uploads it; the node's role must be allowed to read it",
            every_seconds=15,
        )
        _make_readable(partial)
        if _is_whole(version):
            return  # a job's submission has brought it meanwhile
        if os.path.lexists(version):
            # Someone has changed it by hand. Their files are kept under another name.
            aside = version.with_name(f"{version.name}.changed-{int(time.time())}")
            version.rename(aside)
            node.warn(
                f"{FOLDER}/{version.name} had been changed; it is {aside.name} now, and the original is back"
            )
        partial.rename(version)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    node.changed(f"{FOLDER}/{version.name}")


def _download(node: Node, partial: Path, expected: str) -> bool:
    shutil.rmtree(partial)
    partial.mkdir()
    node.host.run(
        "aws",
        "s3",
        "cp",
        "--recursive",
        "--only-show-errors",
        "--region",
        node.settings.region,
        node.deployment.workload_s3_uri.rstrip("/") + "/",
        partial,
        timeout_seconds=SECONDS_FOR_DOWNLOAD,
        env={"AWS_RETRY_MODE": "standard", "AWS_MAX_ATTEMPTS": "10"},
        remedy="",
    )
    found = content_hash(partial)
    if not any(partial.iterdir()):
        raise SetupError("nothing is there", "")
    if found != expected:
        raise SetupError(
            f"the downloaded files have the hash {found}",
            "files are missing or changed: `make deploy` again",
        )
    return True


def _make_readable(folder: Path) -> None:
    """Set modes, which S3 does not keep: all can read, and files that begin with #! are executable."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
        else:
            with path.open("rb") as file:
                path.chmod(0o755 if file.read(2) == b"#!" else 0o644)


def _lead_to(node: Node, link: Path, version: Path) -> None:
    before = os.readlink(link) if link.is_symlink() else None
    if before == version.name:
        return
    if before and _is_version(before) and (link.parent / before).is_dir():
        # Its days count from now, because it is replaced now.
        os.utime(link.parent / before, follow_symlinks=False)
    new = link.with_name(f".{link.name}-{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(version.name)
    try:
        os.replace(new, link)
    except OSError as error:
        new.unlink()
        raise SetupError(
            f"{FOLDER}/{link.name} cannot be made to lead to {version.name}: {error.strerror}",
            f"move {node.settings.shared_path}/{FOLDER}/{link.name} away: it is another user's folder",
        ) from None
    node.changed(f"{FOLDER}/{link.name} leads to {version.name}")


def _remove_old(node: Node, folder: Path, keep: Path) -> None:
    """Remove old versions beyond the number kept, and incomplete downloads."""
    oldest_kept = time.time() - KEPT_DAYS * 24 * 3600
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    found = [path for path in folders if path != keep]
    versions = [path for path in found if _is_version(path.name)]
    versions.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    partials = [path for path in found if ".partial-" in path.name]
    for path in [*versions[KEPT_VERSIONS - 1 :], *partials]:
        if path.stat().st_mtime < oldest_kept:
            shutil.rmtree(path)
            node.changed(f"removed {FOLDER}/{path.name}, not in use for {KEPT_DAYS} days")


def _is_version(name: str) -> bool:
    """Return whether this step created the folder; other folders stay."""
    return len(name) == 16 and all(character in "0123456789abcdef" for character in name)
