import io
import sys
from typing import Any

import pytest

from tests.tools.stacks.teardown_account import HYPERPOD, NETWORK, STORAGE, Account, everything


def test_stacks_go_from_the_top_and_buckets_are_emptied_first(run_teardown: Any) -> None:
    account = Account(everything(policy="Delete"))
    output = run_teardown(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == [HYPERPOD, STORAGE, NETWORK]
    assert set(account.stacks.status.values()) == {"DELETE_COMPLETE"}
    assert account.objects == account.delete_markers == {"data-0123": []}
    assert "emptied data-0123 (4 objects and versions)" in output
    assert "DELETE_COMPLETE    Cluster (AWS::SageMaker::Cluster)" in output
    assert "CREATE_COMPLETE" not in output  # events of before the deletion
    assert f"Deleted {HYPERPOD}, {STORAGE}, {NETWORK}." in output


def test_a_retained_file_system_is_named_and_keeps_the_network(run_teardown: Any) -> None:
    account = Account(everything(policy="Retain"))
    output = run_teardown(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == [HYPERPOD, STORAGE]
    before, after = output.split("Deleted esm2")
    for part in (before, after):
        assert (
            "lustre-0123 (FSx FileSystem): bills by the hour for 1,200 GiB and its throughput"
            in part
        )
        assert "aws fsx delete-file-system --file-system-id lustre-0123" in part
        assert f"Stack {NETWORK} stays" in part
        assert "It bills 1 NAT gateway by the hour" in part


def test_what_is_kept_comes_from_the_deployed_templates(run_teardown: Any) -> None:
    templates = everything(policy="Delete")
    templates[STORAGE]["Resources"]["Data"]["DeletionPolicy"] = "Retain"
    del templates[STORAGE]["Resources"]["Database"]["DeletionPolicy"]  # a snapshot, by default
    account = Account(templates)
    output = run_teardown(account, "--yes", "esm2-slurm")
    assert len(account.objects["data-0123"]) == 3
    assert len(account.links) == 1
    assert "data-0123 (S3 Bucket): bills by the GB and month for what is in it" in output
    assert "database-0123 (RDS DBInstance): bills by the GB and month for the snapshot" in output
    assert "key-0123 (KMS Key): bills by the month" in output
    assert "database-0123" not in output.partition("Lost for good:")[2].partition("Kept in")[0]
    assert account.stacks.deleted == [HYPERPOD, STORAGE, NETWORK]


def test_a_second_run_finds_what_still_holds_the_network(run_teardown: Any) -> None:
    account = Account({NETWORK: everything(policy="Retain")[NETWORK]})
    account.hold_network("fs-00000001")
    output = run_teardown(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == []
    assert "cannot be deleted: fs-00000001 use it" in output
    assert "fs-00000002" not in output


def test_a_file_system_that_is_deleted_with_its_stack_does_not_hold_the_network(
    run_teardown: Any,
) -> None:
    account = Account(everything(policy="Delete"))
    account.hold_network("lustre-0123")
    run_teardown(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == [HYPERPOD, STORAGE, NETWORK]


def test_a_dry_run_writes_nothing(run_teardown: Any) -> None:
    account = Account(everything(policy="Delete"))
    output = run_teardown(account, "--dry-run")
    assert account.writes() == []
    lost = output.partition("Lost for good:")[2]
    for line in (
        "cluster-0123: the cluster, with all its nodes",
        "lustre-0123: file system",
        "data-0123: bucket, with all versions of its objects",
        "image-0123: image repository",
    ):
        assert line in lost
    assert "key-0123: key" not in lost  # retained by its template
    assert "database-0123: database" not in lost  # a snapshot of it stays


def test_nothing_deployed_is_nothing_to_delete(run_teardown: Any) -> None:
    account = Account({})
    output = run_teardown(account)
    assert "Stacks to delete, in this order:\n  none" in output
    assert account.writes() == []


@pytest.mark.parametrize(
    ("arguments", "typed", "message"),
    [
        (
            ["--yes", "esm2-p5"],
            None,
            "got 'esm2-p5', the cluster is esm2-slurm; nothing was deleted",
        ),
        ([], "yes\n", "got 'yes', the cluster is esm2-slurm; nothing was deleted"),
        ([], None, "use a terminal, or --yes esm2-slurm"),
    ],
)
def test_without_the_right_name_nothing_is_deleted(
    arguments: list[str],
    typed: str | None,
    message: str,
    run_teardown: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = Account(everything(policy="Delete"))
    keyboard = io.StringIO(typed or "")
    monkeypatch.setattr(keyboard, "isatty", lambda: typed is not None)
    monkeypatch.setattr(sys, "stdin", keyboard)
    with pytest.raises(ValueError, match=message):
        run_teardown(account, *arguments)
    assert account.writes() == []


def test_the_typed_name_confirms(run_teardown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(everything(policy="Delete"))
    keyboard = io.StringIO("esm2-slurm\n")
    monkeypatch.setattr(keyboard, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", keyboard)
    run_teardown(account)
    assert account.stacks.deleted == [HYPERPOD, STORAGE, NETWORK]
