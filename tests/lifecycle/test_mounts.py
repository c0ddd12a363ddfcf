"""A shared file system is there when it is mounted, of its type, and a written file can be read back."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import write_and_read_back
from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.node import Node
from node_setup.steps import mounts
from tests.lifecycle.node import StandIns, node_of


@pytest.fixture
def lustre(tmp_path: Path) -> Path:
    path = tmp_path / "fsx"
    path.mkdir()
    return path


@pytest.fixture
def node(tmp_path: Path, lustre: Path, stand_ins: StandIns) -> Node:
    stand_ins.command("findmnt", "echo lustre")
    return node_of(tmp_path, lustre_mount_path=str(lustre), home_mount_path=str(tmp_path / "home"))


def fails(node: Node) -> str:
    with pytest.raises(SetupError) as caught:
        mounts.verify_lustre(node)
    return str(caught.value)


def test_a_writable_mount_passes_and_keeps_nothing(node: Node, lustre: Path) -> None:
    mounts.verify_lustre(node)
    assert list(lustre.iterdir()) == []
    assert node.changes == node.warnings == []


def test_a_mount_that_comes_late_is_waited_for(
    node: Node, tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    stand_ins.command(
        "findmnt", f'echo >> "{count}"; [[ $(wc -l < "{count}") -lt 3 ]] || echo lustre'
    )
    node.host = Host(node.host.root)
    pauses: list[float] = []
    monkeypatch.setattr(Host, "sleep", lambda _, seconds: pauses.append(seconds))
    mounts.verify_lustre(node)
    assert pauses == [10, 10]


def test_a_mount_that_never_comes_fails(node: Node, lustre: Path, stand_ins: StandIns) -> None:
    stand_ins.command("findmnt", "exit 1")
    message = fails(node)
    assert f"{lustre} is no writable lustre mount after 900 s: nothing is mounted there" in message
    assert "What to do: check that the cluster's security group" in message


def test_another_file_system_in_its_place_is_no_mount(node: Node, stand_ins: StandIns) -> None:
    """Files on the root volume look correct until the node is replaced."""
    stand_ins.command("findmnt", "echo ext4")
    assert "ext4 is mounted there" in fails(node)


def test_of_stacked_mounts_the_one_on_top_counts(node: Node, stand_ins: StandIns) -> None:
    stand_ins.command("findmnt", r"printf 'autofs\nlustre\n'")
    mounts.verify_lustre(node)
    stand_ins.command("findmnt", r"printf 'lustre\nautofs\n'")
    assert "autofs is mounted there" in fails(node)


@pytest.mark.parametrize("complaint", ["other bytes came back", "Read-only file system"])
def test_a_file_system_that_does_not_take_the_file_fails(
    complaint: str, node: Node, lustre: Path, stand_ins: StandIns
) -> None:
    stand_ins.command("python3", f'touch "${{@: -1}}"; echo "{complaint}" >&2; exit 1')
    assert f"a file could not be written and read back: {complaint}" in fails(node)
    assert list(lustre.iterdir()) == []


def test_bytes_that_are_lost_are_noticed(lustre: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: os.ftruncate(handle, 0))
    with pytest.raises(SystemExit, match="other bytes came back"):
        write_and_read_back.main(f"{lustre}/probe")


def test_a_file_that_is_exchanged_is_noticed(lustre: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who can write to the folder has put a pipe there, which must not block the reader."""

    def exchange(_: int) -> None:
        (lustre / "probe").unlink()
        os.mkfifo(lustre / "probe")

    monkeypatch.setattr(os, "fsync", exchange)
    with pytest.raises(SystemExit, match="other bytes came back"):
        write_and_read_back.main(f"{lustre}/probe")


def test_a_server_that_hangs_is_left_after_its_time(
    node: Node, tmp_path: Path, lustre: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write ignores the request to end; the second one succeeds."""
    first = tmp_path / "first"
    hang = (
        f'[[ -e "{first}" ]] || {{ touch "{first}"; trap "" TERM; exec tail --follow /dev/null; }}'
    )
    stand_ins.command("python3", f'{hang}; exec "{sys.executable}" "$@"')
    monkeypatch.setattr(mounts, "SECONDS_PER_TRY", 0.5)
    node.host = Host(node.host.root)
    monkeypatch.setattr(Host, "sleep", lambda *_: None)
    mounts.verify_lustre(node)
    assert list(lustre.iterdir()) == []


def test_a_probe_that_cannot_be_removed_is_a_warning(node: Node, stand_ins: StandIns) -> None:
    stand_ins.command("rm", "exit 1")
    mounts.verify_lustre(node)
    assert "could not remove" in node.warnings[0]


def test_home_is_nfs(node: Node, tmp_path: Path, stand_ins: StandIns) -> None:
    (tmp_path / "home").mkdir()
    for version in ("nfs", "nfs4"):
        stand_ins.command("findmnt", f"echo {version}")
        mounts.verify_home(node)
    assert f"--mountpoint {tmp_path / 'home'}" in stand_ins.calls[0]
    stand_ins.command("findmnt", "echo lustre")
    with pytest.raises(
        SetupError, match="is no writable nfs mount after 900 s: lustre is mounted there"
    ):
        mounts.verify_home(node)


def test_an_automount_is_used_before_it_is_looked_at(
    node: Node, tmp_path: Path, lustre: Path, stand_ins: StandIns
) -> None:
    used = tmp_path / "used"
    stand_ins.command("stat", f'[[ "$*" != "{lustre}/." ]] || touch "{used}"')
    stand_ins.command("findmnt", f'echo autofs; [[ ! -e "{used}" ]] || echo lustre')
    mounts.verify_lustre(node)
