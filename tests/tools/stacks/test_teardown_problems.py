"""Obstacles to a teardown, and links between kept and deleted resources."""

from typing import Any

import pytest

from tests.tools.answering_aws import Parameters
from tests.tools.json_documents import RunJson
from tests.tools.stacks.teardown_account import HYPERPOD, NETWORK, STORAGE, Account, everything
from tools.stacks import teardown
from tools.stacks.stack_contents import NEVER_DEPLOYED


def test_a_stack_that_cannot_be_deleted_stops_the_rest_with_the_reason(run_teardown: Any) -> None:
    account = Account(everything(policy="Delete"))
    account.stacks.stuck = {"Lustre": "Backup in progress"}
    with pytest.raises(
        ValueError, match=r"storage could not be deleted: Lustre: Backup in progress. Remove"
    ):
        run_teardown(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == [HYPERPOD, STORAGE]


def test_a_stack_that_is_being_changed_is_left_alone(run_teardown: Any) -> None:
    account = Account(everything(policy="Delete"))
    account.stacks.status[STORAGE] = "UPDATE_IN_PROGRESS"
    with pytest.raises(ValueError, match=r"storage is being changed \(UPDATE_IN_PROGRESS\)"):
        run_teardown(account, "--yes", "esm2-slurm")
    assert account.writes() == []


def test_objects_that_s3_keeps_are_an_error(run_teardown: Any) -> None:
    account = Account(everything(policy="Delete"))
    locked = {"Key": "shard-0", "Code": "AccessDenied", "Message": "object is locked"}
    account.aws.answer("s3", "DeleteObjects", {"Errors": [locked]})
    with pytest.raises(
        ValueError,
        match=r"data-0123: 1 objects cannot be deleted, such as shard-0: object is locked",
    ):
        run_teardown(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == [HYPERPOD]


def test_logs_that_hyperpod_made_are_named_and_the_stack_s_are_not(run_teardown: Any) -> None:
    templates = everything(policy="Delete")
    templates[HYPERPOD]["Resources"]["NodeLog"] = {"Type": "AWS::Logs::LogGroup", "Properties": {}}
    account = Account(templates)
    name = "/aws/sagemaker/Clusters/esm2-slurm/abc123def456"
    ours = account.stacks.physical_id("NodeLog")

    def groups(parameters: Parameters) -> dict[str, Any]:
        assert parameters["logGroupNamePrefix"] == "/aws/sagemaker/Clusters/esm2-slurm/"
        return {"logGroups": [{"logGroupName": name}, {"logGroupName": ours}]}

    account.aws.answer("logs", "DescribeLogGroups", groups)
    output = run_teardown(account, "--dry-run")
    assert f"aws logs delete-log-group --log-group-name {name}\n" in output
    assert ours not in output


def test_a_file_system_that_is_kept_keeps_its_files_when_its_bucket_goes(run_teardown: Any) -> None:
    account = Account(everything(policy="Retain"))
    account.link("dra-0123456789abcdef1", "s3://data-0123-of-others")
    account.link("dra-0123456789abcdef2", "s3://data-0123/below")
    output = run_teardown(account, "--yes", "esm2-slurm")
    assert account.objects == {"data-0123": []}
    assert list(account.links) == ["dra-0123456789abcdef1"]
    calls = [name for _, name in account.aws.calls]
    assert calls.index("DeleteDataRepositoryAssociation") < calls.index("DeleteObjects")
    assert "unlinked dra-0123456789abcdef0" in output


def test_a_link_that_fsx_cannot_delete_leaves_the_bucket_alone(run_teardown: Any) -> None:
    account = Account(everything(policy="Retain"))

    def fail(parameters: Parameters) -> dict[str, Any]:
        link = account.links[parameters["AssociationId"]]
        link |= {"Lifecycle": "FAILED", "FailureDetails": {"Message": "no access to the bucket"}}
        return {"AssociationId": link["AssociationId"], "Lifecycle": "DELETING"}

    account.aws.answer("fsx", "DeleteDataRepositoryAssociation", fail)
    with pytest.raises(
        ValueError, match=r"dra-0123456789abcdef0 cannot be deleted: no access to the bucket"
    ):
        run_teardown(account, "--yes", "esm2-slurm")
    assert len(account.objects["data-0123"]) == 3
    assert account.stacks.deleted == [HYPERPOD]


def test_a_link_that_does_not_end_leaves_the_bucket_alone(
    run_teardown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(everything(policy="Retain"))
    monkeypatch.setattr(teardown, "UNLINK_SECONDS", -1.0)
    account.aws.answer("fsx", "DeleteDataRepositoryAssociation", {"Lifecycle": "DELETING"})
    with pytest.raises(ValueError, match="nothing was emptied; run `make teardown` again"):
        run_teardown(account, "--yes", "esm2-slurm")
    assert len(account.objects["data-0123"]) == 3


def test_of_a_pair_that_is_kept_the_link_is_to_go_first(run_teardown: Any) -> None:
    templates = everything(policy="Retain")
    for logical_id in ("Data", "Link"):
        templates[STORAGE]["Resources"][logical_id]["DeletionPolicy"] = "RetainExceptOnCreate"
    account = Account(templates)
    kept = run_teardown(account, "--yes", "esm2-slurm").rpartition("Kept in the account")[2]
    unlink = "delete-data-repository-association --association-id link-0123 --no-delete-data-in-file-system"
    assert 0 < kept.index(unlink) < kept.index("delete-bucket --bucket data-0123")
    assert len(account.links) == 1


def test_a_stack_that_was_never_deployed_goes_like_any_other(run_teardown: Any) -> None:
    account = Account(everything(policy="Delete"))
    account.stacks.status[HYPERPOD] = NEVER_DEPLOYED
    output = run_teardown(account, "--yes", "esm2-slurm")
    assert f"{HYPERPOD} (0 resources)" in output
    assert account.stacks.deleted == [HYPERPOD, STORAGE, NETWORK]


def test_stops_waiting_for_a_deletion_that_takes_hours(
    run_teardown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(everything(policy="Delete"))
    monkeypatch.setattr(teardown, "LIMIT_SECONDS", -1.0)
    with pytest.raises(
        ValueError, match=r"still being deleted after .*; run `make teardown` again"
    ):
        run_teardown(account, "--yes", "esm2-slurm")


def test_a_deletion_that_is_undone_is_an_error(run_teardown: Any) -> None:
    account = Account(everything(policy="Delete"))
    account.stacks.after_deletion = "UPDATE_ROLLBACK_COMPLETE"
    with pytest.raises(
        ValueError, match="hyperpod could not be deleted: it is UPDATE_ROLLBACK_COMPLETE"
    ):
        run_teardown(account, "--yes", "esm2-slurm")


def test_old_events_are_not_read_again(run_teardown: Any) -> None:
    account = Account(everything(policy="Delete"))
    account.stacks.add_old_events(HYPERPOD, 100)
    run_teardown(account, "--yes", "esm2-slurm")
    pages = [page for page in account.stacks.event_pages if page.startswith(HYPERPOD)]
    # One before the deletion and one at each of its two looks, of a history that has fifty.
    assert len(pages) <= 6


def given_vpc() -> dict[str, Any]:
    """The stacks of a cluster in a VPC that is not its own."""
    templates = everything(policy="Delete")
    for logical_id in ("Vpc", "Subnet", "Nat"):
        del templates[NETWORK]["Resources"][logical_id]
    return {NETWORK: templates[NETWORK]}


def test_in_a_given_vpc_a_database_of_an_earlier_cluster_holds_the_security_group(
    run_teardown: Any,
) -> None:
    account = Account(given_vpc())

    def groups(parameters: Parameters) -> dict[str, Any]:
        ((name, values),) = [(f["Name"], f["Values"]) for f in parameters["Filters"]]
        assert values == ["group-0123"]
        assert name in ("ip-permission.group-id", "egress.ip-permission.group-id")
        naming = ["group-0123", "sg-database"] if name.startswith("ip") else ["sg-other"]
        return {"SecurityGroups": [{"GroupId": group_id} for group_id in naming]}

    databases = [
        {"DBInstanceIdentifier": name, "VpcSecurityGroups": [{"VpcSecurityGroupId": group}]}
        for name, group in (("accounting", "sg-database"), ("elsewhere", "sg-elsewhere"))
    ]
    account.aws.answer("ec2", "DescribeSecurityGroups", groups)
    account.aws.answer("rds", "DescribeDBInstances", {"DBInstances": databases})
    output = run_teardown(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == []
    assert "cannot be deleted: accounting, sg-database, sg-other use it" in output


def test_a_plan_and_an_incomplete_teardown_as_json(
    run_json: RunJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(everything(policy="Delete"))
    account.stacks.stuck = {"Lustre": "Backup in progress"}
    monkeypatch.setattr(teardown, "open_session", lambda region, profile: account.aws.session)
    monkeypatch.setattr(teardown, "POLL_SECONDS", 0.0)
    options = ("--cluster", "clusters/slurm.yaml")
    plan = run_json(teardown.main, *options, "--dry-run")
    assert plan["exit_status"] == 0 and plan["result"]["stacks"] == [HYPERPOD, STORAGE, NETWORK]
    assert "AWS::FSx::FileSystem" in {found["type"] for found in plan["result"]["lost"]}
    assert plan["result"]["deleted"] == [] and account.writes() == []
    ended = run_json(teardown.main, *options, "--yes", "esm2-slurm")
    assert ended["exit_status"] == 2 and "Lustre: Backup in progress" in ended["error"]
    assert ended["result"]["deleted"] == [HYPERPOD]
