"""Create the Lustre folders of SageMaker Studio's spaces, and acknowledge the requests.

``serve`` answers requests from a queue without end, as a service on Slurm's controller. ``drain`` answers
them until the queue is empty, as a Kubernetes job that gets this file in a ConfigMap. ``shared`` creates the
folder that all spaces share. A failed request stays in the queue, which delivers it again and finally sets it
aside.

Root runs this, with the capabilities to create folders and change their owner. Requests name profiles, and
this code derives paths from them, below a root that no one else can write to. It needs Python 3.9, the
standard library and the aws command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STUDIO_UID = 200001
"""Owner of the spaces' files in the file system."""
STUDIO_GID = 1001
"""Group of the spaces' files in the file system."""
FIRST_UID = 1000
"""First number of a user; lower numbers belong to the system and get no access."""
PROFILE = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9]){0,62}")
"""SageMaker's ``UserProfileName``; it ignores case, so folders are in lower case."""
# Folders below the root.
USERS = "users"
SHARED = "shared"
TRASH = ".removed"
SECONDS_PER_POLL = 20
"""Duration of a long poll; the most that SQS allows."""
EMPTY_POLLS = 2
"""Number of empty long polls after which the queue counts as empty."""
SECONDS_AFTER_FAULT = 15

# POSIX ACLs as extended attributes: a version, then entries of tag, permissions and number (linux
# include/uapi/linux/posix_acl_xattr.h and posix_acl.h).
_VERSION = 2
_NO_ID = 0xFFFFFFFF
"""Number in entries that name no user or group."""
_OWNER = 0x01
_USER = 0x02
_GROUP = 0x04
_MASK = 0x10
_OTHER = 0x20
_ALL = 7
_NONE = 0


class BadRequest(ValueError):
    """Invalid request, which no repetition corrects."""


def acl(uids: list[int]) -> bytes:
    """Return an ACL that allows everything to the owner, Studio's user and these users, and no one else.

    Studio's user is named although it owns the folder, because jobs' files belong to the jobs' users.
    """
    entries = [
        (_OWNER, _ALL, _NO_ID),
        *((_USER, _ALL, uid) for uid in sorted({STUDIO_UID, *uids})),
        (_GROUP, _NONE, _NO_ID),
        (_MASK, _ALL, _NO_ID),
        (_OTHER, _NONE, _NO_ID),
    ]
    return struct.pack("<I", _VERSION) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def make_partition(root: Path, folder: str, uids: list[int]) -> None:
    """Create ``root/folder`` for Studio's user, open to ``uids``; new files in it inherit this.

    Files in an existing folder are not changed.

    Raises:
        OSError: if the file system does not answer, or the path is not a folder.
    """
    *above, name = folder.split("/")
    with root_folder(str(root), *above) as parent:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.fchown(handle, STUDIO_UID, STUDIO_GID)
        wanted = acl(uids)
        # New files inherit the default, so it is set first.
        os.setxattr(handle, "system.posix_acl_default", wanted)
        os.setxattr(handle, "system.posix_acl_access", wanted)
    finally:
        os.close(handle)


def remove_partition(root: Path, folder: str) -> None:
    """Move ``root/folder`` to the trash at once; ``empty_trash`` deletes its files later."""
    *above, name = folder.split("/")
    with (
        root_folder(str(root), *above) as parent,
        root_folder(str(root), TRASH) as trash,
        contextlib.suppress(FileNotFoundError),
    ):
        os.rename(name, f"{name}-{time.time_ns()}", src_dir_fd=parent, dst_dir_fd=trash)


def empty_trash(root: Path) -> None:
    if not os.path.lexists(root / TRASH):
        return
    with root_folder(str(root), TRASH) as trash:
        for name in sorted(os.listdir(trash)):
            # shutil.rmtree fails at a depth of some hundred folders.
            command = ["rm", "-rf", "--one-file-system", "--", name]
            if subprocess.run(command, cwd=f"/proc/self/fd/{trash}").returncode:
                raise OSError(f"{root / TRASH}/{name} could not be removed")


@contextlib.contextmanager
def root_folder(*names: str) -> Iterator[int]:
    """Open root's folders, each below the previous one, create missing ones, and yield the last one.

    No link is followed. All can enter the folders, and only root can write, because others could plant links.

    Raises:
        PermissionError: if a folder belongs to another user.
    """
    with contextlib.ExitStack() as stack:
        handle: int | None = None
        for name in names:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=handle)
            handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            stack.callback(os.close, handle)
            found = os.fstat(handle)
            if found.st_uid != os.geteuid():
                raise PermissionError(
                    f"{name} must belong to root: its owner is uid {found.st_uid}"
                )
            if stat.S_IMODE(found.st_mode) != 0o755:
                os.fchmod(handle, 0o755)
        assert handle is not None
        yield handle


def handle(root: Path, text: str) -> dict[str, Any]:
    """Handle a request, and return its acknowledgement.

    Raises:
        BadRequest: if the request is invalid.
        OSError: if the file system refuses.
    """
    request = _parse(text)
    folder = f"{USERS}/{request['profile'].lower()}"
    if request["action"] == "make":
        make_partition(root, folder, request["uids"])
    else:
        remove_partition(root, folder)
    return {"action": request["action"], "profile": request["profile"], "domain": request["domain"]}


def _parse(text: str) -> dict[str, Any]:
    try:
        request = json.loads(text)
        action = request["action"]
        profile = request["profile"]
        domain = request["domain"]
        uids = request["uids"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"{type(error).__name__}: {error}") from None
    if action not in ("make", "remove"):
        raise BadRequest(f"action: got {action!r}; expected make or remove")
    if not isinstance(profile, str) or not PROFILE.fullmatch(profile):
        raise BadRequest(f"profile: got {profile!r}; expected the name of a profile")
    if not isinstance(domain, str):
        raise BadRequest(f"domain: got {domain!r}; expected the id of a domain")
    if not isinstance(uids, list) or not all(_is_uid(uid) for uid in uids):
        raise BadRequest(f"uids: got {uids!r}; expected a list of numbers of users")
    return {"action": action, "profile": profile, "domain": domain, "uids": uids}


def _is_uid(value: Any) -> bool:
    # A bool is an int, and must not count as one.
    return type(value) is int and FIRST_UID <= value < _NO_ID


class Queue:
    def __init__(self, url: str, region: str) -> None:
        self._options = ["--queue-url", url, "--region", region, "--output", "json"]

    def receive(self) -> list[dict[str, str]]:
        # The queue is FIFO. One message at a time, so that a fault delays no other profile.
        answer = self._aws(
            "receive-message",
            "--max-number-of-messages",
            "1",
            "--wait-time-seconds",
            str(SECONDS_PER_POLL),
        )
        return json.loads(answer or "{}").get("Messages", [])

    def send(self, body: dict[str, Any]) -> None:
        self._aws("send-message", "--message-body", json.dumps(body))

    def delete(self, message: dict[str, str]) -> None:
        self._aws("delete-message", "--receipt-handle", message["ReceiptHandle"])

    def _aws(self, *arguments: str) -> str:
        done = subprocess.run(
            ["aws", "sqs", *arguments, *self._options], capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            raise OSError(f"aws sqs {arguments[0]}: {done.stderr.strip()}")
        return done.stdout


def poll(root: Path, requests: Queue, acknowledgements: Queue) -> int:
    """Answer the messages of one poll, and return their number."""
    messages = requests.receive()
    for message in messages:
        body = message["Body"]
        try:
            acknowledgement = handle(root, body)
        except (BadRequest, OSError) as error:
            # The message stays. The queue delivers it again, and finally moves it to the dead letters.
            print(f"request {body}: {error}", file=sys.stderr, flush=True)
            continue
        acknowledgements.send(acknowledgement)
        requests.delete(message)
        print(f"{acknowledgement['action']} {acknowledgement['profile']}: done", flush=True)
    empty_trash(root)
    return len(messages)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["serve", "drain", "shared"])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument(
        "--uids", default="", help="users who may enter the shared folder, separated by commas"
    )
    parser.add_argument("--requests", default="")
    parser.add_argument("--acknowledgements", default="")
    parser.add_argument("--region", default="")
    options = parser.parse_args()
    os.umask(0o022)
    if options.what == "shared":
        make_partition(options.root, SHARED, [int(uid) for uid in options.uids.split(",") if uid])
        return 0
    requests = Queue(options.requests, options.region)
    acknowledgements = Queue(options.acknowledgements, options.region)
    empty = 0
    while options.what == "serve" or empty < EMPTY_POLLS:
        try:
            num_messages = poll(options.root, requests, acknowledgements)
            empty = 0 if num_messages else empty + 1
        except (OSError, subprocess.TimeoutExpired) as error:
            if options.what == "drain":
                raise
            print(error, file=sys.stderr, flush=True)
            time.sleep(SECONDS_AFTER_FAULT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
