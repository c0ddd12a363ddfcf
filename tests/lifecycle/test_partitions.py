"""Partitions of Studio on a file system with ACLs, asked for through a queue."""

from __future__ import annotations

import json
import os
import stat
import struct
from pathlib import Path
from typing import Any

import pytest

from studio import partitions
from tests.lifecycle.node import StandIns

ACCESS = "system.posix_acl_access"
DEFAULT = "system.posix_acl_default"
# A queue in a folder, one file for each message, in the place of SQS. FIFO: a message that was taken and not
# deleted comes again.
_AWS = """
while (( $# )); do
    case "$1" in
        sqs|receive-message|send-message|delete-message) verb="$1" ;;
        --queue-url) queue="{folder}/$2"; shift ;;
        --message-body) body="$2"; shift ;;
        --receipt-handle) receipt="$2"; shift ;;
    esac
    shift
done
mkdir -p "$queue"
case "$verb" in
    send-message) printf '%s' "$body" > "$queue/$(date +%s%N)" ;;
    delete-message) rm "$queue/$receipt" ;;
    receive-message)
        first="$(ls "$queue" | head -1)"
        [[ -z "$first" ]] || python3 -c 'import json, pathlib, sys
file = pathlib.Path(sys.argv[1])
message = {{"ReceiptHandle": file.name, "Body": file.read_text()}}
print(json.dumps({{"Messages": [message]}}))' "$queue/$first" ;;
esac
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root folder for which the tests need no root, because folders keep their owner."""
    monkeypatch.setattr(partitions, "STUDIO_UID", os.geteuid())
    monkeypatch.setattr(partitions, "STUDIO_GID", os.getegid())
    try:
        os.setxattr(tmp_path, DEFAULT, partitions.acl([2001]))
    except OSError as error:
        pytest.skip(f"no ACLs in {tmp_path}: {error}")
    os.removexattr(tmp_path, DEFAULT)
    return tmp_path / "studio"


class Queues:
    def __init__(self, folder: Path, stand_ins: StandIns) -> None:
        self._folder = folder
        stand_ins.command("aws", _AWS.format(folder=folder))
        self.requests = partitions.Queue("requests", "us-west-2")
        self.acknowledgements = partitions.Queue("acknowledgements", "us-west-2")

    def ask(self, **request: Any) -> None:
        self.requests.send(
            {"action": "make", "profile": "ada", "domain": "d-1", "uids": [2001], **request}
        )

    def poll(self, root: Path) -> int:
        return partitions.poll(root, self.requests, self.acknowledgements)

    def in_(self, name: str) -> list[dict[str, Any]]:
        folder = self._folder / name
        return (
            [json.loads(path.read_text()) for path in sorted(folder.iterdir())]
            if folder.is_dir()
            else []
        )


@pytest.fixture
def queues(tmp_path: Path, stand_ins: StandIns) -> Queues:
    return Queues(tmp_path / "queues", stand_ins)


def entries(path: Path, name: str) -> set[tuple[int, int, int]]:
    """Tag, permissions and number of each entry of an ACL, as the kernel gives it back."""
    text = os.getxattr(path, name)
    return set(struct.iter_unpack("<HHI", text[4:]))


def test_a_partition_is_its_owners_and_the_users(root: Path, queues: Queues) -> None:
    queues.ask(profile="Ada-L")
    assert queues.poll(root) == 1
    folder = root / "users/ada-l"
    assert {(2, 7, 2001), (1, 7, 2**32 - 1), (32, 0, 2**32 - 1)} <= entries(folder, ACCESS)
    assert entries(folder, DEFAULT) == entries(folder, ACCESS)
    assert stat.S_IMODE(folder.stat().st_mode) & 0o007 == 0
    assert stat.S_IMODE((root / "users").stat().st_mode) == 0o755
    assert queues.in_("requests") == []
    assert queues.in_("acknowledgements") == [
        {"action": "make", "profile": "Ada-L", "domain": "d-1"}
    ]


def test_what_is_made_in_it_is_open_to_both(root: Path, queues: Queues) -> None:
    queues.ask()
    queues.poll(root)
    made = root / "users/ada/run/metrics.jsonl"
    made.parent.mkdir()
    made.write_text("")
    # Who made it, and so owns it, may be either.
    both = {(2, 7, 2001), (2, 7, partitions.STUDIO_UID)}
    assert both <= entries(made.parent, DEFAULT)
    assert both <= entries(made, ACCESS)


def test_a_second_request_leaves_contents_alone(root: Path, queues: Queues) -> None:
    queues.ask()
    queues.poll(root)
    (root / "users/ada/kept").write_text("results")
    queues.ask(uids=[2002])
    queues.poll(root)
    assert (root / "users/ada/kept").read_text() == "results"
    assert (2, 7, 2002) in entries(root / "users/ada", ACCESS)
    assert (2, 7, 2001) not in entries(root / "users/ada", ACCESS)


def test_a_removed_partition_is_gone_with_all_that_is_in_it(root: Path, queues: Queues) -> None:
    queues.ask()
    queues.poll(root)
    outside = root.parent / "outside"
    outside.write_text("somebody's")
    (root / "users/ada/link").symlink_to(outside)
    queues.ask(action="remove")
    queues.ask(action="remove")
    queues.poll(root)
    queues.poll(root)
    assert list((root / "users").iterdir()) == list((root / partitions.TRASH).iterdir()) == []
    assert outside.read_text() == "somebody's"
    assert [said["action"] for said in queues.in_("acknowledgements")] == [
        "make",
        "remove",
        "remove",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"profile": "../../etc"},
        {"profile": "a/b"},
        {"profile": ""},
        {"profile": 7},
        {"action": "chmod"},
        {"uids": [0]},
        {"uids": [True]},
        {"uids": "2001"},
        {"domain": None},
    ],
    ids=str,
)
def test_a_request_that_asks_for_something_else_stays_for_people_to_see(
    wrong: dict[str, Any], root: Path, queues: Queues, capsys: pytest.CaptureFixture[str]
) -> None:
    queues.ask(**wrong)
    assert queues.poll(root) == 1
    assert not root.exists()
    assert len(queues.in_("requests")) == 1 and queues.in_("acknowledgements") == []
    assert capsys.readouterr().err.startswith("request {")


def test_a_link_in_the_place_of_a_partition_is_not_followed(root: Path, queues: Queues) -> None:
    victim = root.parent / "victim"
    victim.mkdir()
    (root / "users").mkdir(parents=True)
    (root / "users/ada").symlink_to(victim)
    queues.ask()
    queues.poll(root)
    assert len(queues.in_("requests")) == 1
    assert ACCESS not in os.listxattr(victim)


def test_a_folder_on_the_way_that_is_somebodys_is_not_used(
    root: Path, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "users").mkdir(parents=True)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match=f"must belong to root: its owner is uid {owner}"):
        partitions.make_partition(root, "users/ada", [])


def test_what_cannot_be_acknowledged_is_done_again(
    root: Path, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(body: dict[str, Any]) -> None:
        raise OSError("aws sqs send-message: throttled")

    queues.ask()
    with monkeypatch.context() as patched:
        patched.setattr(queues.acknowledgements, "send", refuse)
        with pytest.raises(OSError, match="throttled"):
            queues.poll(root)
    assert len(queues.in_("requests")) == 1
    queues.poll(root)
    assert (queues.in_("requests"), len(queues.in_("acknowledgements"))) == ([], 1)


def test_reports_a_fault_of_the_queue_with_its_reason(root: Path, stand_ins: StandIns) -> None:
    stand_ins.command("aws", "echo 'AccessDenied: no' >&2; exit 254")
    queue = partitions.Queue("requests", "us-west-2")
    with pytest.raises(OSError, match="aws sqs receive-message: AccessDenied: no"):
        partitions.poll(root, queue, queue)


def test_draining_ends_when_nothing_comes_any_more(
    root: Path, queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ada", "ben"):
        queues.ask(profile=name)
    urls = (
        "--requests",
        "requests",
        "--acknowledgements",
        "acknowledgements",
        "--region",
        "us-west-2",
    )
    monkeypatch.setattr("sys.argv", ["partitions.py", "drain", "--root", str(root), *urls])
    assert partitions.main() == 0
    assert sorted(path.name for path in (root / "users").iterdir()) == ["ada", "ben"]


def test_the_shared_partition_is_open_to_all_users(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["partitions.py", "shared", "--root", str(root), "--uids", "2001,2002"]
    )
    assert partitions.main() == 0
    assert {(2, 7, 2001), (2, 7, 2002)} <= entries(root / "shared", ACCESS)
