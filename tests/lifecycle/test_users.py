"""Users and groups are the same on every node; who leaves the cluster file is shut out and loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.steps import users
from tests.lifecycle.node import SCRIPTS, StandIns, node_of
from tests.lifecycle.user_database import user_command

UID = os.getuid()
GID = os.getgid()
"""Homes belong to the user who runs the tests; the stand-in's own users have other numbers."""
RESEARCH = {"name": "research", "gid": GID}
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 ada@laptop"


def ada(**changes: Any) -> dict[str, Any]:
    return {
        **{"name": "ada", "uid": UID, "group": "research", "groups": [], "ssh_keys": [KEY]},
        **{"account": None, "admin": False},
        **changes,
    }


class Machine:
    def __init__(self, folder: Path, stand_ins: StandIns) -> None:
        self.folder = folder
        self.stand_ins = stand_ins
        self.group = "controller"
        self.database = {
            "passwd": [["daemon", "x", "70001", "70001", "", "/", "/bin/false"]],
            "group": [["docker", "x", "998", ""], ["sudo", "x", "27", ""]],
            "shadow": [],
            "homes_given": [],
            "busy": [],
        }
        for name in ("getent", "groups", "groupadd", "useradd", "usermod"):
            stand_ins.function(name, partial(user_command, folder / "database", name))
        stand_ins.command("visudo")
        self.home = folder / "root/fsx/home/ada"

    @property
    def database(self) -> dict[str, Any]:
        return json.loads((self.folder / "database").read_text())

    @database.setter
    def database(self, value: dict[str, Any]) -> None:
        (self.folder / "database").write_text(json.dumps(value))

    def entry(self, table: str, name: str) -> list[str]:
        return next(entry for entry in self.database[table] if entry[0] == name)

    def apply(
        self, *wanted: dict[str, Any], groups: tuple[dict[str, Any], ...] = (RESEARCH,)
    ) -> Node:
        node = node_of(self.folder, self.group, users=list(wanted), groups=list(groups))
        users.apply(node)
        return node

    def fails(
        self, *wanted: dict[str, Any], groups: tuple[dict[str, Any], ...] = (RESEARCH,)
    ) -> str:
        with pytest.raises(SetupError) as caught:
            self.apply(*wanted, groups=groups)
        return str(caught.value)


@pytest.fixture
def machine(tmp_path: Path, stand_ins: StandIns) -> Machine:
    return Machine(tmp_path, stand_ins)


def test_a_user_is_made_with_number_group_home_and_keys(machine: Machine) -> None:
    node = machine.apply(ada())
    assert machine.entry("passwd", "ada")[2:] == [
        str(UID),
        str(GID),
        "",
        "/fsx/home/ada",
        "/bin/bash",
    ]
    assert KEY in (machine.home / ".ssh/authorized_keys").read_text()
    assert machine.home.stat().st_mode & 0o777 == 0o700
    assert node.warnings == []


def test_a_second_run_changes_nothing(machine: Machine) -> None:
    machine.apply(ada(admin=True))
    assert machine.apply(ada(admin=True)).changes == []


def test_without_users_nothing_is_made(machine: Machine) -> None:
    assert machine.apply(groups=()).changes == []
    assert not machine.home.parent.exists()
    assert not machine.home.parents[2].joinpath(users.RECORD.lstrip("/")).exists()


def test_homes_are_on_openzfs_where_there_is_one(machine: Machine) -> None:
    node = node_of(
        machine.folder, "controller", users=[ada()], groups=[RESEARCH], home_mount_path="/home"
    )
    users.apply(node)
    assert (machine.folder / "root/home/ada/.ssh").is_dir()
    assert machine.entry("passwd", "ada")[5] == "/home/ada"


@pytest.mark.parametrize(
    ("users_entry", "message"),
    [
        (
            ["ada", "x", "70002", "1", "", "/", ""],
            f"user ada has uid 70002 on this node, and {UID} in",
        ),
        (
            ["eve", "x", str(UID), "1", "", "/", ""],
            f"uid {UID} of user ada is user eve's on this node",
        ),
    ],
)
def test_a_number_or_name_that_is_taken_names_both(
    machine: Machine, users_entry: list[str], message: str
) -> None:
    machine.database = {**machine.database, "passwd": [users_entry]}
    assert message in machine.fails(ada())
    assert len(machine.database["passwd"]) == 1


@pytest.mark.parametrize(
    ("groups_entry", "message"),
    [
        (
            ["research", "x", "70002", ""],
            f"group research has gid 70002 on this node, and {GID} in",
        ),
        (
            ["others", "x", str(GID), ""],
            f"gid {GID} of group research is group others's on this node",
        ),
    ],
)
def test_a_group_that_is_taken_names_both(
    machine: Machine, groups_entry: list[str], message: str
) -> None:
    machine.database = {**machine.database, "group": [groups_entry]}
    assert message in machine.fails()


def test_groups_are_exactly_those_of_the_file(machine: Machine) -> None:
    gpu = {"name": "gpu", "gid": 70003}
    machine.apply(ada(groups=["gpu"]), groups=(RESEARCH, gpu))
    database = machine.database
    database["group"][0][3] = "ada"
    machine.database = database
    machine.apply(ada(groups=["gpu"]), groups=(RESEARCH, gpu))
    assert machine.entry("group", "docker")[3] == ""
    assert machine.entry("group", "gpu")[3] == "ada"


def test_another_primary_group_does_not_walk_through_the_home(machine: Machine) -> None:
    machine.apply(ada())
    machine.apply(ada(group="gpu"), groups=(RESEARCH, {"name": "gpu", "gid": 70003}))
    assert machine.entry("passwd", "ada")[3] == "70003"
    assert machine.entry("passwd", "ada")[5] == "/fsx/home/ada"
    assert machine.database["homes_given"] == ["/nonexistent"]


@pytest.mark.parametrize("change", [{"group": "gpu"}, {"group": "research"}])
def test_a_user_with_processes_is_moved_later(machine: Machine, change: dict[str, Any]) -> None:
    """A job of his on the node must not fail it; a whole home is never given to another group."""
    groups = (RESEARCH, {"name": "gpu", "gid": 70003})
    machine.apply(ada(), groups=groups)
    moved = {"users": [ada(**change)], "groups": list(groups), "home_mount_path": "/home"}
    before = machine.entry("passwd", "ada")
    for busy in ("ada", "nobody"):
        machine.database = {**machine.database, "busy": [busy]}
        node = node_of(machine.folder, "login", **moved)
        users.apply(node)
        if busy == "ada":
            assert machine.entry("passwd", "ada") == before
            assert "user ada keeps group" in node.warnings[0]
            assert not [change for change in node.changes if change.startswith("user ada")]
    assert node.warnings == []
    assert machine.entry("passwd", "ada")[3] == ("70003" if change["group"] == "gpu" else str(GID))
    assert machine.entry("passwd", "ada")[5] == "/home/ada"


def test_administrators_use_sudo_by_name(machine: Machine, stand_ins: StandIns) -> None:
    machine.apply(ada(admin=True))
    sudoers = machine.folder / "root" / users.SUDOERS.lstrip("/")
    assert sudoers.read_text().splitlines()[1:] == ["ada ALL=(ALL:ALL) NOPASSWD: ALL"]
    assert sudoers.stat().st_mode & 0o777 == 0o440
    machine.apply(ada())
    assert not sudoers.exists()


def test_a_sudo_file_that_sudo_refuses_is_not_installed(
    machine: Machine, stand_ins: StandIns
) -> None:
    stand_ins.command("visudo", "echo 'syntax error' >&2; exit 1")
    assert "syntax error" in machine.fails(ada(admin=True))
    assert not (machine.folder / "root" / users.SUDOERS.lstrip("/")).exists()


def test_who_left_the_file_is_shut_out_and_keeps_his_home(machine: Machine) -> None:
    machine.apply(ada(admin=True))
    database = machine.database
    database["group"][1][3] = "ada"
    machine.database = database
    machine.apply()
    assert machine.entry("shadow", "ada")[7] == "1"
    assert machine.entry("group", "sudo")[3] == ""
    assert not (machine.folder / "root" / users.SUDOERS.lstrip("/")).exists()
    assert (machine.home / ".ssh/authorized_keys").exists()
    assert machine.apply().changes == []


def test_who_comes_back_may_log_in_again(machine: Machine) -> None:
    machine.apply(ada())
    machine.apply()
    machine.apply(ada())
    assert machine.entry("shadow", "ada")[7] == ""
    assert machine.apply(ada()).changes == []


def test_locks_only_users_that_the_file_has_named(machine: Machine, stand_ins: StandIns) -> None:
    machine.apply(ada())
    stand_ins.forget_calls()
    machine.apply()
    assert [call.split()[-1] for call in stand_ins.calls if call.startswith("usermod")] == ["ada"]


def test_a_user_cannot_keep_a_node_from_coming(machine: Machine) -> None:
    machine.apply(ada())
    folder = machine.home / ".ssh"
    (folder / "authorized_keys").unlink()
    (folder / "authorized_keys").mkdir()
    node = machine.apply(ada())
    assert "/fsx/home/ada/.ssh of ada is not as it should be" in node.warnings[0]


def test_a_home_that_does_not_answer_is_a_warning(
    machine: Machine, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "SECONDS_FOR_SSH", 0)
    assert "does not answer within 0 s" in machine.apply(ada()).warnings[0]


def programs(machine: Machine, group: str, num_users: int) -> Counter[str]:
    """Programs that a second run starts on a node of a group."""
    wanted = [ada(name=f"user{number}", uid=80_000 + number) for number in range(num_users)]
    machine.group = group
    # Homes of several users need root's rights.
    homes = mock.patch.object(users, "is_home_of", return_value=True)
    keys = mock.patch.object(users, "_bring_ssh")
    with homes, keys:
        machine.apply(*wanted)
        machine.stand_ins.forget_calls()
        machine.apply(*wanted)
    return Counter(call.split()[0] for call in machine.stand_ins.calls)


@pytest.mark.parametrize("group", ["controller", "workers"])
def test_a_node_starts_as_many_programs_for_a_hundred_users_as_for_ten(
    machine: Machine, group: str
) -> None:
    few = programs(machine, group, 10)
    assert few == programs(machine, group, 100)
    assert few == {"getent": 3, "groups": 1}


def test_keys_are_set_up_on_the_controller_by_one_program(
    machine: Machine, stand_ins: StandIns
) -> None:
    """Homes are shared, and 1,000 nodes would open those of all users at once."""
    machine.group = "login"
    machine.apply(ada())
    assert machine.home.is_dir() and not (machine.home / ".ssh").exists()
    machine.group = "controller"
    stand_ins.command("python3", f'exec "{sys.executable}" "$@"')
    machine.apply(ada())
    assert (machine.home / ".ssh/authorized_keys").exists()
    assert len([call for call in stand_ins.calls if call.startswith("python3 ")]) == 1


@pytest.fixture
def shared_temporary() -> Iterator[Path]:
    """A folder that every user can enter."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")
def test_inside_a_home_root_does_nothing(shared_temporary: Path) -> None:
    """Two users. The second one has another's folder as home."""
    nobody = 65534
    homes = []
    for name, owner in (("mine", nobody), ("others", 0)):
        home = shared_temporary / name
        home.mkdir(mode=0o755)
        os.chown(home, owner, owner)
        homes.append({"name": name, "uid": nobody, "gid": nobody, "home": str(home), "keys": [KEY]})
    done = subprocess.run(
        [sys.executable, "-I", "-B", SCRIPTS / "users_ssh.py", "30"],
        input=json.dumps(homes),
        capture_output=True,
        text=True,
        check=True,
    )
    results = {result["name"]: result for result in json.loads(done.stdout)}
    assert results["mine"]["status"] == 0
    made = (shared_temporary / "mine/.ssh/authorized_keys").stat()
    assert (made.st_uid, made.st_gid) == (nobody, nobody)
    assert results["others"]["status"] == 1 and "Permission denied" in results["others"]["errors"]
    assert not (shared_temporary / "others/.ssh").exists()
