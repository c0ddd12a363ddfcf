"""sshd's rules with pam_slurm_adopt: PAM decides which users may log in, and the rules can be removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.steps import pam_adopt
from tests.lifecycle.node import StandIns, node_of
from tests.lifecycle.slurm_commands import SlurmCommands

# Ubuntu's, without its comments.
SSHD = """@include common-auth
account    required     pam_nologin.so
@include common-account
session [success=ok ignore=ignore module_unknown=ignore default=bad]        pam_selinux.so close
session    required     pam_loginuid.so
@include common-session
session    required     pam_limits.so
@include common-password
"""
COMMON_SESSION = "session required pam_unix.so\nsession\toptional\tpam_systemd.so\n"
ADA = {
    **{"name": "ada", "uid": 2001, "group": "ada", "groups": [], "ssh_keys": []},
    **{"account": None, "admin": True},
}


class Worker:
    def __init__(self, folder: Path, stand_ins: StandIns) -> None:
        self.folder = folder
        self.root = folder / "root"
        for path, text in (
            ("etc/pam.d/sshd", SSHD),
            ("etc/pam.d/common-session", COMMON_SESSION),
            ("usr/lib/x86_64-linux-gnu/security/pam_slurm_adopt.so", ""),
        ):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)
        stand_ins.command("sshd", "printf 'port 22\\nusepam yes\\n'")
        stand_ins.command("getent")
        self.stand_ins = stand_ins
        self.pam_says(root=0, ubuntu=0, nobody=6)

    def pam_says(self, **status: int) -> None:
        answers = "".join(
            f"{user}) echo said; exit {number} ;; " for user, number in status.items()
        )
        self.stand_ins.command("python3", f'case "${{!#}}" in {answers} esac')

    def apply(self, *, on: bool = True, **settings: Any) -> Node:
        node = node_of(self.folder, pam_slurm_adopt=on, **settings)
        pam_adopt.apply(node)
        return node

    def fails(self) -> str:
        with pytest.raises(SetupError) as caught:
            self.apply()
        return str(caught.value)

    @property
    def sshd(self) -> str:
        return (self.root / "etc/pam.d/sshd").read_text()

    def files(self) -> list[str]:
        return sorted(
            str(path.relative_to(self.root))
            for path in (self.root / "etc").rglob("*")
            if path.is_file()
        )


@pytest.fixture
def worker(tmp_path: Path, slurm: SlurmCommands, stand_ins: StandIns) -> Worker:
    return Worker(tmp_path, stand_ins)


def test_the_rule_is_the_last_of_the_accounts(worker: Worker) -> None:
    worker.apply()
    lines = [line for line in worker.sshd.splitlines() if not line.startswith("#")]
    position = lines.index("-account required pam_slurm_adopt.so")
    assert lines[position - 2] == "@include common-account"
    assert "pam_access.so nodefgroup" in lines[position - 1]
    assert not any("account" in line for line in lines[position + 1 :])


def test_sessions_stay_in_the_job(worker: Worker) -> None:
    worker.apply()
    assert "@include slurm-adopt-session" in worker.sshd.splitlines()
    assert "@include common-session" not in worker.sshd.splitlines()
    session = (worker.root / "etc/pam.d/slurm-adopt-session").read_text().splitlines()
    assert session[1:] == ["session required pam_unix.so"]


def test_administrators_come_without_a_job(worker: Worker) -> None:
    worker.apply(users=[ADA, {**ADA, "name": "bob", "admin": False}])
    access = (worker.root / "etc/security/access-slurm-adopt.conf").read_text().splitlines()
    assert access[1:] == ["+:root ubuntu (sudo) ada:ALL", "-:ALL:ALL"]


def test_a_second_run_changes_nothing(worker: Worker) -> None:
    worker.apply()
    assert worker.apply().changes == []


def test_switched_off_everything_is_as_before(worker: Worker) -> None:
    before = worker.files()
    assert worker.apply(on=False).changes == []
    worker.apply()
    worker.apply(on=False)
    assert (worker.sshd, worker.files()) == (SSHD, before)


@pytest.mark.parametrize(
    ("user", "status"), [("root", 6), ("ubuntu", 7), ("nobody", 0), ("nobody", 28)]
)
def test_rules_that_do_not_work_do_not_stay(worker: Worker, user: str, status: int) -> None:
    """28 is PAM's answer where a module does not load."""
    before = worker.files()
    worker.pam_says(**{**{"root": 0, "ubuntu": 0, "nobody": 6}, user: status})
    assert f"{user}, but answers: said ({status}); the rules have been removed" in worker.fails()
    assert (worker.sshd, worker.files()) == (SSHD, before)


def test_an_image_without_ubuntu_is_not_asked_about_him(
    worker: Worker, stand_ins: StandIns
) -> None:
    stand_ins.command("getent", '[[ "$2" != ubuntu ]] || exit 2')
    worker.pam_says(root=0, ubuntu=10, nobody=6)
    worker.apply()
    assert "pam_slurm_adopt" in worker.sshd


def test_slurms_own_folder_is_given_by_its_path(worker: Worker) -> None:
    (worker.root / "usr/lib/x86_64-linux-gnu/security/pam_slurm_adopt.so").unlink()
    assert "pam_slurm_adopt.so is not on this node, in" in worker.fails()
    (worker.root / "opt/slurm/lib/security").mkdir(parents=True)
    (worker.root / "opt/slurm/lib/security/pam_slurm_adopt.so").touch()
    worker.apply()
    assert (
        "-account required /opt/slurm/lib/security/pam_slurm_adopt.so" in worker.sshd.splitlines()
    )


@pytest.mark.parametrize(
    ("name", "value"), [("PrologFlags", "Alloc"), ("ProctrackType", "proctrack/linuxproc")]
)
def test_slurm_that_cannot_adopt_fails_before_anything_is_written(
    worker: Worker, slurm: SlurmCommands, name: str, value: str
) -> None:
    slurm.configure(**{name: value})
    message = worker.fails()
    assert f"{name} of Slurm's configuration is {value}, without" in message
    assert "slurm.conf on the controller" in message
    assert worker.sshd == SSHD


def test_sshd_that_does_not_ask_pam_fails(worker: Worker, stand_ins: StandIns) -> None:
    stand_ins.command("sshd", "echo usepam no")
    assert "sshd does not use PAM" in worker.fails()


def test_rules_of_another_form_fail(worker: Worker) -> None:
    (worker.root / "etc/pam.d/sshd").write_text("auth include system-auth\n")
    assert "has no line `@include common-account`" in worker.fails()
