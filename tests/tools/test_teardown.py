import io
import sys
from typing import Any

import pytest

from tests.tools import stack_templates
from tests.tools.answering_aws import AnsweringAws, Parameters
from tests.tools.deployed_stacks import DeployedStacks, Template
from tools import stack_deletion, teardown

PREFIX = "esm2-slurm-slurm-"
NETWORK, STORAGE, HYPERPOD = (f"{PREFIX}{name}" for name in ("network", "storage", "hyperpod"))


def everything(*, policy: str) -> dict[str, Template]:
    """All three stacks; ``policy`` is that of the file system."""
    templates = {
        NETWORK: stack_templates.network(),
        STORAGE: stack_templates.storage(),
        HYPERPOD: stack_templates.hyperpod(),
    }
    templates[NETWORK]["Resources"]["Nat"] = {"Type": "AWS::EC2::NatGateway", "Properties": {}}
    templates[STORAGE]["Resources"]["Lustre"]["DeletionPolicy"] = policy
    return templates


class Account:
    """The cluster's stacks, and the services beside them."""

    def __init__(self, templates: dict[str, Template]) -> None:
        self.aws = AnsweringAws("us-west-2")
        self.stacks = DeployedStacks(self.aws, templates)
        self.objects = {"data-0123": 3}
        self.aws.answer("logs", "DescribeLogGroups", {"logGroups": []})
        self.aws.answer("ec2", "DescribeNetworkInterfaces", {"NetworkInterfaces": []})
        self.aws.answer("fsx", "DescribeFileSystems", {"FileSystems": []})
        self.aws.answer("rds", "DescribeDBInstances", {"DBInstances": []})
        self.aws.answer("s3", "ListObjectVersions", self._versions)
        self.aws.answer("s3", "DeleteObjects", self._delete_objects)

    def _versions(self, parameters: Parameters) -> dict[str, Any]:
        # The bucket may only be emptied when the nodes that write to it are gone.
        assert HYPERPOD not in self.stacks.status or self.stacks.status[HYPERPOD] == "DELETE_COMPLETE"
        count = self.objects[parameters["Bucket"]]
        versions = [{"Key": f"shard-{index}", "VersionId": "v1"} for index in range(count)]
        return {"Versions": versions, "DeleteMarkers": [{"Key": "old", "VersionId": "v2"}] if count else []}

    def _delete_objects(self, parameters: Parameters) -> dict[str, Any]:
        self.objects[parameters["Bucket"]] = 0
        assert {"Key": "old", "VersionId": "v2"} in parameters["Delete"]["Objects"]
        return {}

    def hold_network(self, file_system_id: str) -> None:
        """Let a file system of an earlier teardown have an interface in the VPC."""

        def interfaces(parameters: Parameters) -> dict[str, Any]:
            assert parameters["Filters"] == [{"Name": "vpc-id", "Values": ["vpc-0123"]}]
            return {
                "NetworkInterfaces": [
                    {"NetworkInterfaceId": "eni-0000000a"},
                    {"NetworkInterfaceId": "eni-0000000b"},
                ]
            }

        systems = [
            {"FileSystemId": file_system_id, "NetworkInterfaceIds": ["eni-0000000b", "eni-0000000c"]},
            {"FileSystemId": "fs-00000002", "NetworkInterfaceIds": ["eni-0000000d"]},
        ]
        self.aws.answer("ec2", "DescribeNetworkInterfaces", interfaces)
        self.aws.answer("fsx", "DescribeFileSystems", {"FileSystems": systems})

    def writes(self) -> list[str]:
        return [name for _, name in self.aws.calls if not name.startswith(("Get", "List", "Describe"))]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on an account; returns what it printed."""

    def run(account: Account, *arguments: str) -> str:
        monkeypatch.setattr(teardown, "open_session", lambda region, profile: account.aws.session)
        monkeypatch.setattr(stack_deletion, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(sys, "argv", ["teardown", "--cluster", "clusters/slurm.yaml", *arguments])
        assert teardown.main() == 0
        return capsys.readouterr().out

    return run


def test_stacks_go_from_the_top_and_buckets_are_emptied_first(run: Any) -> None:
    account = Account(everything(policy="Delete"))
    output = run(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == [HYPERPOD, STORAGE, NETWORK]
    assert set(account.stacks.status.values()) == {"DELETE_COMPLETE"}
    assert account.objects == {"data-0123": 0}
    assert "emptied data-0123 (4 objects and versions)" in output
    assert "DELETE_COMPLETE    Cluster (AWS::SageMaker::Cluster)" in output
    assert "CREATE_COMPLETE" not in output  # events of before the deletion
    assert f"Deleted {HYPERPOD}, {STORAGE}, {NETWORK}." in output


def test_a_retained_file_system_is_named_and_keeps_the_network(run: Any) -> None:
    account = Account(everything(policy="Retain"))
    output = run(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == [HYPERPOD, STORAGE]
    before, after = output.split("Deleted esm2")
    for part in (before, after):
        assert "lustre-0123 (FSx FileSystem): bills about $252 a month (1200 GiB at 250 MB/s per TiB)" in part
        assert "aws fsx delete-file-system --file-system-id lustre-0123" in part
        assert f"Stack {NETWORK} stays" in part
        assert "NAT gateway about $37 a month" in part


def test_what_is_kept_comes_from_the_deployed_templates(run: Any) -> None:
    templates = everything(policy="Delete")
    templates[STORAGE]["Resources"]["Data"]["DeletionPolicy"] = "Retain"
    del templates[STORAGE]["Resources"]["Database"]["DeletionPolicy"]  # a snapshot, by default
    account = Account(templates)
    output = run(account, "--yes", "esm2-slurm")
    assert account.objects == {"data-0123": 3}
    assert "data-0123 (S3 Bucket): bills for what is in it" in output
    assert "database-0123 (RDS DBInstance): bills for the snapshot" in output
    assert "key-0123 (KMS Key): bills $1 a month" in output
    assert account.stacks.deleted == [HYPERPOD, STORAGE, NETWORK]


def test_a_second_run_finds_what_still_holds_the_network(run: Any) -> None:
    account = Account({NETWORK: everything(policy="Retain")[NETWORK]})
    account.hold_network("fs-00000001")
    output = run(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == []
    assert "fs-00000001 would lose their addresses" in output
    assert "fs-00000002" not in output


def test_a_file_system_that_is_deleted_with_its_stack_does_not_hold_the_network(run: Any) -> None:
    account = Account(everything(policy="Delete"))
    account.hold_network("lustre-0123")
    run(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == [HYPERPOD, STORAGE, NETWORK]


def test_a_dry_run_writes_nothing(run: Any) -> None:
    account = Account(everything(policy="Delete"))
    output = run(account, "--dry-run")
    assert account.writes() == []
    lost = output.partition("Lost for good:")[2]
    for line in (
        "cluster-0123: the cluster, with all its nodes",
        "lustre-0123: file system",
        "data-0123: bucket, with all versions of its objects",
        "image-0123: image repository",
        "database-0123: database",
    ):
        assert line in lost
    assert "key-0123: key" not in lost  # retained by its template


def test_nothing_deployed_is_nothing_to_delete(run: Any) -> None:
    account = Account({})
    output = run(account)
    assert "Stacks to delete, in this order:\n  none" in output
    assert account.writes() == []


@pytest.mark.parametrize(
    ("arguments", "typed", "message"),
    [
        (["--yes", "esm2-p5"], None, "got 'esm2-p5', the cluster is esm2-slurm; nothing was deleted"),
        ([], "yes\n", "got 'yes', the cluster is esm2-slurm; nothing was deleted"),
        ([], None, "run it in a terminal, or with --yes esm2-slurm"),
    ],
)
def test_without_the_right_name_nothing_is_deleted(
    arguments: list[str], typed: str | None, message: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account(everything(policy="Delete"))
    keyboard = io.StringIO(typed or "")
    monkeypatch.setattr(keyboard, "isatty", lambda: typed is not None)
    monkeypatch.setattr(sys, "stdin", keyboard)
    with pytest.raises(ValueError, match=message):
        run(account, *arguments)
    assert account.writes() == []


def test_the_typed_name_confirms(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(everything(policy="Delete"))
    keyboard = io.StringIO("esm2-slurm\n")
    monkeypatch.setattr(keyboard, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", keyboard)
    run(account)
    assert account.stacks.deleted == [HYPERPOD, STORAGE, NETWORK]


def test_a_stack_that_cannot_be_deleted_stops_the_rest_with_the_reason(run: Any) -> None:
    account = Account(everything(policy="Delete"))
    account.stacks.stuck = {"Lustre": "Backup in progress"}
    with pytest.raises(ValueError, match=r"storage could not be deleted: Lustre: Backup in progress. Remove"):
        run(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == [HYPERPOD, STORAGE]


def test_a_stack_that_is_being_changed_is_left_alone(run: Any) -> None:
    account = Account(everything(policy="Delete"))
    account.stacks.status[STORAGE] = "UPDATE_IN_PROGRESS"
    with pytest.raises(ValueError, match=r"storage is being changed \(UPDATE_IN_PROGRESS\)"):
        run(account, "--yes", "esm2-slurm")
    assert account.writes() == []


def test_objects_that_s3_keeps_are_an_error(run: Any) -> None:
    account = Account(everything(policy="Delete"))
    locked = {"Key": "shard-0", "Code": "AccessDenied", "Message": "object is locked"}
    account.aws.answer("s3", "DeleteObjects", {"Errors": [locked]})
    with pytest.raises(
        ValueError, match=r"data-0123: 1 objects cannot be deleted, such as shard-0: object is locked"
    ):
        run(account, "--yes", "esm2-slurm")
    assert account.stacks.deleted == [HYPERPOD]


def test_logs_that_hyperpod_made_are_named(run: Any) -> None:
    account = Account(everything(policy="Delete"))
    name = "/aws/sagemaker/Clusters/esm2-slurm/abc123def456"

    def groups(parameters: Parameters) -> dict[str, Any]:
        assert parameters["logGroupNamePrefix"] == "/aws/sagemaker/Clusters/esm2-slurm/"
        return {"logGroups": [{"logGroupName": name}]}

    account.aws.answer("logs", "DescribeLogGroups", groups)
    assert f"aws logs delete-log-group --log-group-name {name}" in run(account, "--dry-run")
