"""Homes on a shared file system: whole, of the right owner, and out of the reach of users until they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node_setup.failure import SetupError
from node_setup.home import make_home
from node_setup.host import Host
from node_setup.root_folder import make_root_folder

UID = os.getuid()
GID = os.getgid()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    skeleton = host.path("/etc/skel")
    (skeleton / ".config").mkdir(parents=True)
    (skeleton / ".bashrc").write_text("umask 027\n")
    (skeleton / ".link").symlink_to("/nowhere")
    make_root_folder(host, "/fsx/home")
    return host


def test_a_home_has_the_skeletons_files(host: Host) -> None:
    assert make_home(host, "/fsx/home/ada", UID, GID)
    home = host.path("/fsx/home/ada")
    assert sorted(path.name for path in home.iterdir()) == [".bashrc", ".config", ".link"]
    assert home.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in home.parent.iterdir()] == ["ada"]


def test_a_home_that_is_there_stays_as_it_is(host: Host) -> None:
    make_home(host, "/fsx/home/ada", UID, GID)
    home = host.path("/fsx/home/ada")
    home.chmod(0o750)
    (home / ".bashrc").write_text("mine\n")
    assert not make_home(host, "/fsx/home/ada", UID, GID)
    assert home.stat().st_mode & 0o777 == 0o750
    assert (home / ".bashrc").read_text() == "mine\n"


def test_of_two_nodes_one_makes_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other node's home appears after this one has looked."""
    home = host.path("/fsx/home/ada")
    home.mkdir()
    (home / "theirs").touch()
    with monkeypatch.context() as context:
        context.setattr(os.path, "lexists", lambda _: False)
        assert not make_home(host, "/fsx/home/ada", UID, GID)
    assert [path.name for path in home.iterdir()] == ["theirs"]
    assert [path.name for path in home.parent.iterdir()] == ["ada"]


def test_a_home_of_somebody_else_fails(host: Host) -> None:
    make_home(host, "/fsx/home/ada", UID, GID)
    with pytest.raises(
        SetupError, match=f"/fsx/home/ada must be a folder of uid {UID + 1}: it is drwx------ of"
    ):
        make_home(host, "/fsx/home/ada", UID + 1, GID)


def test_a_link_in_place_of_a_home_is_not_followed(host: Host) -> None:
    host.path("/fsx/home/ada").symlink_to(host.path("/etc"))
    with pytest.raises(SetupError, match="must be a folder of uid"):
        make_home(host, "/fsx/home/ada", UID, GID)


def test_a_home_that_cannot_be_given_away_leaves_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS server that maps root to user nobody."""

    def refuse(path: str, *_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(SetupError, match=r"Operation not permitted.*no_root_squash"):
        make_home(host, "/fsx/home/ada", UID, GID)
    assert list(host.path("/fsx/home").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_of_homes_that_users_can_change_fails(host: Host, mode: int) -> None:
    host.path("/fsx/home").chmod(mode)
    with pytest.raises(
        SetupError, match="/fsx/home must be a folder of root's that no one else can write to"
    ):
        make_root_folder(host, "/fsx/home")


def test_a_folder_of_homes_that_is_a_link_fails(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.path("/fsx").mkdir()
    host.path("/fsx/home").symlink_to(tmp_path)
    with pytest.raises(SetupError, match="must be a folder of root's"):
        make_root_folder(host, "/fsx/home")
