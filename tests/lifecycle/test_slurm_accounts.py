"""Slurm's accounts follow the cluster file, and touch nothing that it never named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from node_setup.failure import SetupError
from node_setup.steps import slurm_accounts
from tests.lifecycle.node import node_of
from tests.lifecycle.slurm_commands import SlurmCommands
from tests.lifecycle.slurm_settings import account

TOP = account("top", None)
ESM2 = account("esm2", "top")


def user(name: str, account: str | None, *, admin: bool = False) -> dict[str, Any]:
    return {
        **{"name": name, "uid": 2001, "group": name, "groups": [], "ssh_keys": []},
        **{"account": account, "admin": admin},
    }


@pytest.fixture
def folder(tmp_path: Path, slurm: SlurmCommands) -> Path:
    return tmp_path


def apply(
    folder: Path, accounts: list[dict[str, Any]], *users: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """Changes and warnings of a run."""
    node = node_of(folder, "controller", accounts=accounts, users=list(users))
    slurm_accounts.apply(node)
    return node.changes, node.warnings


def test_parents_are_made_before_their_children(folder: Path, slurm: SlurmCommands) -> None:
    changes, warnings = apply(
        folder, [ESM2, TOP], user("ada", "esm2", admin=True), user("bob", None)
    )
    assert slurm.database["accounts"] == {
        "root": ["", "1"],
        "top": ["root", "5"],
        "esm2": ["top", "5"],
    }
    assert slurm.database["users"] == {"root": ["root"], "ada": ["esm2"]}
    assert slurm.database["admins"] == ["root", "ada"]
    assert (len(changes), warnings) == (4, [])


def test_a_second_run_changes_nothing(folder: Path) -> None:
    apply(folder, [ESM2, TOP], user("ada", "esm2"))
    assert apply(folder, [ESM2, TOP], user("ada", "esm2")) == ([], [])


def test_accounts_move_and_shares_change(folder: Path, slurm: SlurmCommands) -> None:
    apply(folder, [ESM2, TOP])
    apply(folder, [{**TOP, "parent": "esm2"}, {**ESM2, "parent": None, "fairshare": 7}])
    assert slurm.database["accounts"] == {
        "root": ["", "1"],
        "top": ["esm2", "5"],
        "esm2": ["root", "7"],
    }


def test_a_user_moves_to_another_account(folder: Path, slurm: SlurmCommands) -> None:
    apply(folder, [ESM2, TOP], user("ada", "esm2", admin=True))
    apply(folder, [ESM2, TOP], user("ada", "top"))
    assert slurm.database["users"]["ada"] == ["top"]
    assert slurm.database["admins"] == ["root"]


def test_who_has_left_may_submit_no_more(folder: Path, slurm: SlurmCommands) -> None:
    apply(folder, [ESM2, TOP], user("ada", "esm2", admin=True))
    # An account that somebody gave by hand.
    slurm.database = {**slurm.database, "users": {"root": ["root"], "ada": ["esm2", "top"]}}
    apply(folder, [ESM2, TOP])
    assert slurm.database["users"]["ada"] == []
    assert slurm.database["admins"] == ["root"]
    assert apply(folder, [ESM2, TOP]) == ([], [])


def test_who_has_left_and_has_jobs_is_tried_again(folder: Path, slurm: SlurmCommands) -> None:
    apply(folder, [ESM2, TOP], user("ada", "esm2"))
    slurm.database = {**slurm.database, "busy": ["ada"]}
    changes, warnings = apply(folder, [ESM2, TOP])
    assert changes == []
    assert "sudo scancel --user=ada" in warnings[0]
    slurm.database = {**slurm.database, "busy": []}
    assert apply(folder, [ESM2, TOP])[0] != []
    assert slurm.database["users"]["ada"] == []


def test_what_the_file_never_named_is_left_alone(folder: Path, slurm: SlurmCommands) -> None:
    database = {
        "accounts": {"root": ["", "1"], "other": ["root", "9"]},
        "users": {"root": ["root"], "eve": ["other"]},
        "admins": ["root", "eve"],
    }
    slurm.database = database
    apply(folder, [TOP], user("ada", "top"))
    apply(folder, [TOP])
    assert slurm.database["accounts"]["other"] == ["root", "9"]
    assert slurm.database["users"]["eve"] == ["other"]
    assert "eve" in slurm.database["admins"]


def test_a_controller_in_reserve_does_nothing(folder: Path, slurm: SlurmCommands) -> None:
    node = node_of(folder, "controller", accounts=[TOP])
    node.facts = dataclasses.replace(node.facts, controller_addresses=("10.0.0.11", "10.0.0.10"))
    slurm_accounts.apply(node)
    assert list(slurm.database["accounts"]) == ["root"]


def test_a_refusal_fails_with_what_slurm_says(folder: Path, slurm: SlurmCommands) -> None:
    slurm.configure(ClusterName="unknown")
    with pytest.raises(
        SetupError,
        match=r"`sacctmgr --immediate add account name=top cluster=unknown .* ended with 64",
    ):
        apply(folder, [TOP])


def test_shares_and_accounts_without_effect_are_warnings(
    folder: Path, slurm: SlurmCommands
) -> None:
    slurm.configure(AccountingStorageEnforce="none")
    _, warnings = apply(folder, [TOP, {**ESM2, "fairshare": 1}])
    assert [
        "AccountingStorageEnforce" in warnings[0],
        "fairshare has no effect" in warnings[1],
    ] == [
        True,
        True,
    ]
    slurm.configure(AccountingStorageEnforce="associations", PriorityWeightFairShare="1000")
    assert apply(folder, [TOP, {**ESM2, "fairshare": 1}])[1] == []
