"""The keys in ~/.ssh: the cluster file's, one of the user's own between nodes, and what the user added."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lifecycle.node import SCRIPTS
from user_ssh import BEGIN, END, with_block

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 ada@laptop"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE6 ada@desk"


def start(home: Path, keys: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", SCRIPTS / "user_ssh.py", home],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "USER": "ada"},
    )


def run(home: Path, *keys: str) -> tuple[int, str, str]:
    process = start(home, list(keys))
    output, errors = process.communicate(json.dumps(keys), timeout=60)
    return process.returncode, output, errors


def authorized(home: Path) -> list[str]:
    return (home / ".ssh/authorized_keys").read_text().splitlines()


def test_keys_of_the_file_and_an_own_one(tmp_path: Path) -> None:
    status, output, _ = run(tmp_path, KEY)
    public = (tmp_path / ".ssh/id_ed25519.pub").read_text().strip()
    assert (status, len(output.splitlines())) == (0, 2)
    assert authorized(tmp_path) == [BEGIN, KEY, public, END]
    assert public.endswith(" ada@cluster")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / ".ssh").iterdir()}
    assert modes == {"authorized_keys": 0o600, "id_ed25519": 0o600, "id_ed25519.pub": 0o600}


def test_a_second_run_says_and_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path, KEY)
    before = authorized(tmp_path)
    assert run(tmp_path, KEY) == (0, "", "")
    assert authorized(tmp_path) == before


def test_a_key_that_left_the_file_goes_and_the_users_own_stay(tmp_path: Path) -> None:
    run(tmp_path, KEY)
    path = tmp_path / ".ssh/authorized_keys"
    path.write_text("# mine\n" + path.read_text() + OTHER + "\n")
    run(tmp_path)
    lines = authorized(tmp_path)
    assert KEY not in lines
    assert lines[-2:] == ["# mine", OTHER]


def test_many_nodes_at_once_agree_on_one_key(tmp_path: Path) -> None:
    processes = [start(tmp_path, [KEY]) for _ in range(6)]
    for process in processes:
        _, errors = process.communicate(json.dumps([KEY]), timeout=60)
        assert (process.returncode, errors) == (0, "")
    made = subprocess.run(
        ["ssh-keygen", "-y", "-f", tmp_path / ".ssh/id_ed25519"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert authorized(tmp_path) == [BEGIN, KEY, made.stdout.strip(), END]
    assert sorted(path.name for path in (tmp_path / ".ssh").iterdir()) == [
        "authorized_keys",
        "id_ed25519",
        "id_ed25519.pub",
    ]


def test_a_folder_that_others_can_write_to_is_closed(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh").chmod(0o777)
    assert "mode 0700" in run(tmp_path, KEY)[1]
    assert (tmp_path / ".ssh").stat().st_mode & 0o777 == 0o700


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("keep\n")
    (tmp_path / ".ssh/authorized_keys").symlink_to(elsewhere)
    run(tmp_path, KEY)
    assert elsewhere.read_text() == "keep\n"
    assert KEY in authorized(tmp_path)


def test_an_own_key_with_a_passphrase_costs_no_other_key(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    private = tmp_path / ".ssh/id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", private], check=True)
    private.with_suffix(".pub").unlink()
    status, _, errors = run(tmp_path, KEY)
    assert (status, authorized(tmp_path)) == (1, [BEGIN, KEY, END])
    assert "passphrase" in errors


def test_a_fault_is_one_line(tmp_path: Path) -> None:
    status, _, errors = run(tmp_path / "nowhere", KEY)
    assert (status, len(errors.splitlines())) == (1, 1)


@pytest.mark.parametrize(
    "text",
    [f"{BEGIN}\n{OTHER}\n", f"{END}\n{OTHER}\n", f"{END}\n{OTHER}\n{BEGIN}\n"],
    ids=["no end", "no beginning", "the wrong way round"],
)
def test_half_a_block_costs_no_key(text: str) -> None:
    assert with_block(text, [KEY]).splitlines() == [BEGIN, KEY, END, OTHER]


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_only_newlines_end_a_line(separator: str) -> None:
    """A key's comment, as sshd reads it, does not become a key."""
    line = f"ssh-rsa AAA my{separator}ssh-rsa BBB x"
    assert with_block(f"{line}\n", [KEY]).split("\n") == [BEGIN, KEY, END, line, ""]


def test_line_ends_of_windows_do_not_hide_the_block() -> None:
    text = with_block(OTHER + "\n", [KEY]).replace("\n", "\r\n")
    assert with_block(text, []) == with_block(OTHER + "\n", [])
