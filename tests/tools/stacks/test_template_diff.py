import json
import os
import shutil
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError

from config.resource_names import stack_names
from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped
from tests.tools.stacks import stack_templates
from tests.tools.stacks.stack_templates import Template
from tools.stacks import diff as template_diff
from tools.stacks.diff import Pair, PreciousLoss, describe, find_precious_losses

REPOSITORY = Path(__file__).parents[3]
REGION = "us-west-2"
ORDER = ("network", "storage", "hyperpod")


def templates() -> dict[str, Template]:
    return {name: getattr(stack_templates, name)() for name in ORDER}


def losses(change: Callable[[dict[str, Template]], None]) -> list[PreciousLoss]:
    """Return the losses of a deployment of all three stacks with a change."""
    old = templates()
    new = templates()
    change(new)
    return find_precious_losses([Pair(name, old[name], new[name]) for name in ORDER], region=REGION)


def setting(
    stack: str, logical_id: str, path: str, value: Any
) -> Callable[[dict[str, Template]], None]:
    """A change of one property, named as in ``LustreConfiguration.EfaEnabled``."""

    def change(stacks: dict[str, Template]) -> None:
        *parents, name = path.split(".")
        place = stacks[stack]["Resources"][logical_id]["Properties"]
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place[parent]
        assert place.get(name) != value
        place[name] = value

    return change


REPLACED = [
    ("hyperpod", "Cluster", "ClusterName", "esm2-new", ["Cluster"]),
    ("hyperpod", "Cluster", "VpcConfig.Subnets", ["subnet-0123"], ["Cluster"]),
    ("hyperpod", "Cluster", "VpcConfig.SecurityGroupIds", ["sg-0123"], ["Cluster"]),
    ("hyperpod", "Image", "RepositoryName", "esm2/other", ["Image"]),
    ("hyperpod", "Image", "EncryptionConfiguration", {"EncryptionType": "KMS"}, ["Image"]),
    ("storage", "Lustre", "StorageType", "HDD", ["Lustre"]),
    ("storage", "Lustre", "SubnetIds", ["subnet-0123"], ["Lustre"]),
    ("storage", "Lustre", "SecurityGroupIds", ["sg-0123"], ["Lustre"]),
    ("storage", "Lustre", "KmsKeyId", "arn:aws:kms:us-west-2:123456789012:key/other", ["Lustre"]),
    ("storage", "Lustre", "FileSystemType", "OPENZFS", ["Lustre"]),
    ("storage", "Lustre", "LustreConfiguration.DeploymentType", "SCRATCH_2", ["Lustre"]),
    ("storage", "Data", "BucketName", "esm2-other", ["Data"]),
    ("storage", "Database", "MasterUsername", "root", ["Database"]),
    ("storage", "Database", "StorageEncrypted", False, ["Database"]),
    # A subnet or group that is replaced takes with it whatever was created in it, in this stack and others.
    ("network", "Subnet", "AvailabilityZoneId", "usw2-az1", ["Lustre", "Cluster"]),
    ("network", "Subnet", "CidrBlock", "10.0.64.0/18", ["Lustre", "Cluster"]),
    ("network", "Group", "GroupDescription", "All nodes", ["Lustre", "Cluster"]),
    ("network", "Vpc", "CidrBlock", "10.1.0.0/16", ["Lustre", "Cluster"]),
]


@pytest.mark.parametrize(("stack", "logical_id", "path", "value", "expected"), REPLACED)
def test_create_only_properties_replace(
    stack: str, logical_id: str, path: str, value: Any, expected: list[str]
) -> None:
    found = losses(setting(stack, logical_id, path, value))
    assert [(p.loss.logical_id, p.loss.kind) for p in found] == [
        (name, "is replaced") for name in expected
    ]


UPDATED = [
    ("hyperpod", "Cluster", "InstanceGroups.0.InstanceCount", 8),
    (
        "hyperpod",
        "Cluster",
        "InstanceGroups.0.LifeCycleConfig.SourceS3Uri",
        "s3://sagemaker-esm2/lifecycle/4567/",
    ),
    ("hyperpod", "Cluster", "NodeRecovery", "None"),
    ("hyperpod", "Role", "RoleName", "other"),  # replaced, but nothing is lost with a role
    ("storage", "Lustre", "StorageCapacity", 2400),
    ("storage", "Lustre", "LustreConfiguration.PerUnitStorageThroughput", 500),
    ("storage", "Lustre", "LustreConfiguration.DataCompressionType", "NONE"),
    ("storage", "Data", "VersioningConfiguration.Status", "Suspended"),
    ("storage", "Database", "AllocatedStorage", "40"),
    ("storage", "Database", "BackupRetentionPeriod", 14),
    ("storage", "Database", "MultiAZ", True),
    ("storage", "Key", "EnableKeyRotation", False),
    ("network", "Subnet", "MapPublicIpOnLaunch", True),
]


@pytest.mark.parametrize(("stack", "logical_id", "path", "value"), UPDATED)
def test_other_properties_do_not(stack: str, logical_id: str, path: str, value: Any) -> None:
    assert losses(setting(stack, logical_id, path, value)) == []


@pytest.mark.parametrize(
    ("stack", "logical_id", "path", "value"),
    [
        ("storage", "Lustre", "LustreConfiguration.EfaEnabled", True),
    ],
)
def test_what_only_may_replace_is_a_note(
    stack: str, logical_id: str, path: str, value: Any
) -> None:
    (found,) = losses(setting(stack, logical_id, path, value))
    assert not found.is_certain
    assert describe(found).startswith("note: ")
    assert "DELETED" not in describe(found)


def test_without_a_change_nothing_is_lost() -> None:
    assert losses(lambda stacks: None) == []


def test_a_warning_says_what_why_and_what_becomes_of_the_old_one() -> None:
    (kept,) = losses(setting("storage", "Lustre", "StorageType", "HDD"))
    assert describe(kept).splitlines() == [
        "!!! WARNING: a file system is replaced: Lustre (AWS::FSx::FileSystem) in storage",
        "    why: StorageType changes from SSD to HDD",
        "    then: the new one is empty",
        "    the old one stays in the account, outside of the stack, and bills until you delete it",
    ]
    (deleted,) = losses(setting("storage", "Data", "BucketName", "esm2-other"))
    assert "the old one is DELETED" in describe(deleted)
    assert "keeps its name" not in describe(deleted)


def test_a_replacement_that_keeps_its_name_cannot_be_deployed() -> None:
    (found,) = losses(setting("hyperpod", "Cluster", "VpcConfig.Subnets", ["subnet-0123"]))
    assert "it keeps its name" in describe(found)


@pytest.mark.parametrize(
    ("logical_id", "kept"), [("Lustre", True), ("Data", False), ("Database", False)]
)
def test_a_resource_that_leaves_the_template_is_deleted_or_left_behind(
    logical_id: str, kept: bool
) -> None:
    (found,) = losses(lambda stacks: stacks["storage"]["Resources"].pop(logical_id))
    assert (found.loss.logical_id, found.loss.kind, found.loss.is_kept) == (
        logical_id,
        "is deleted",
        kept,
    )


def test_another_type_under_the_same_id_is_another_resource() -> None:
    def change(stacks: dict[str, Template]) -> None:
        stacks["storage"]["Resources"]["Data"]["Type"] = "AWS::S3Express::DirectoryBucket"

    (found,) = losses(change)
    assert found.loss.kind == "is replaced"


@pytest.mark.parametrize(
    ("reference", "spreads"),
    [
        ({"Ref": "Key"}, True),
        ({"Fn::GetAtt": "Key.Arn"}, True),
        ({"Fn::Sub": "arn:aws:kms:${AWS::Region}:key/${Key.KeyId}"}, True),
        ({"Fn::Sub": ["${K}", {"K": {"Fn::GetAtt": ["Key", "Arn"]}}]}, True),
        ({"Fn::Sub": "arn:aws:kms:${AWS::Region}:key/${!Key}"}, False),
        ("arn:aws:kms:us-west-2:123456789012:key/Key", False),
    ],
)
def test_replacement_spreads_along_every_kind_of_reference(reference: Any, spreads: bool) -> None:
    old = stack_templates.storage()
    old["Resources"]["Lustre"]["Properties"]["KmsKeyId"] = reference
    new = deepcopy(old)
    new["Resources"]["Key"]["Type"] = "AWS::KMS::ReplicaKey"
    found = find_precious_losses([Pair("storage", old, new)], region=REGION)
    assert {p.loss.logical_id for p in found} == ({"Key", "Lustre"} if spreads else {"Key"})


@pytest.mark.parametrize("capacity", [1200, 2400])
@pytest.mark.parametrize("storage_type", ["SSD", "HDD"])
def test_two_files_are_compared_without_aws(
    capacity: int,
    storage_type: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = stack_templates.storage()
    new = stack_templates.storage()
    new["Resources"]["Lustre"]["Properties"] |= {
        "StorageCapacity": capacity,
        "StorageType": storage_type,
    }
    for name, template in (("old", old), ("new", new)):
        (tmp_path / name).write_text(json.dumps(template))
    files = ["--old", str(tmp_path / "old"), "--new", str(tmp_path / "new")]
    replaced = storage_type == "HDD"
    assert run(files, monkeypatch) == int(replaced)
    output = capsys.readouterr().out
    assert ("!!! WARNING" in output) is replaced
    assert ("survive this change" in output) is not replaced


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["template_diff", *arguments])
    cluster = ["--cluster", str(REPOSITORY / "clusters/slurm.yaml")]
    sys.argv += cluster
    return template_diff.main()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--old", "a.json"], "--old and --new belong together"),
        (["--old", "a.json", "--new", "b.json"], "a.json: no such file; give a template"),
        ([], "the pinned CDK command line is not installed"),
    ],
)
def test_wrong_arguments_are_explained(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        run(arguments, monkeypatch)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an assembly of the three stacks, and a node that writes down how it was called."""
    artifacts: dict[str, Any] = {}
    for construct_id, name in zip(
        ("SlurmNetworkStack", "SlurmStorageStack", "SlurmHyperPodStack"), ORDER, strict=True
    ):
        file = f"{construct_id}.template.json"
        properties = {"templateFile": file, "stackName": f"esm2-slurm-slurm-{name}"}
        artifacts[construct_id] = {"type": "aws:cloudformation:stack", "properties": properties}
        artifacts[f"{construct_id}.assets"] = {
            "type": "cdk:asset-manifest",
            "properties": {"file": "x"},
        }
    files = {
        "cdk.out/manifest.json": json.dumps({"artifacts": artifacts}),
        "node_modules/aws-cdk/bin/cdk": "",
        "bin/node": '#!/bin/sh\nprintf "%s\\n" "$@" > node.arguments\nexit ${NODE_STATUS:-0}\n',
    }
    for name, template in templates().items():
        construct_id = next(
            i for i, a in artifacts.items() if a["properties"].get("stackName", "").endswith(name)
        )
        files[f"cdk.out/{construct_id}.template.json"] = json.dumps(template)
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "bin/node").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def deployed(stacks: dict[str, Template], monkeypatch: pytest.MonkeyPatch) -> AnsweringAws:
    aws = AnsweringAws(REGION)

    def answer(parameters: Parameters) -> dict[str, Any]:
        name = parameters["StackName"].removeprefix("esm2-slurm-slurm-")
        if name not in stacks:
            raise Refusal("ValidationError", "Stack with id ... does not exist")
        return {"TemplateBody": json.dumps(stacks[name])}

    aws.answer("cloudformation", "GetTemplate", answer)
    monkeypatch.setattr(template_diff, "open_session", lambda region, profile: aws.session)
    return aws


def test_deployed_templates_are_compared_with_what_cdk_diff_synthesized(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = templates()
    before["network"]["Resources"]["Subnet"]["Properties"]["CidrBlock"] = "10.0.128.0/18"
    aws = deployed(before, monkeypatch)
    assert run([], monkeypatch) == 1
    output = capsys.readouterr().out
    assert (
        "a file system is replaced: Lustre (AWS::FSx::FileSystem) in esm2-slurm-slurm-storage"
        in output
    )
    assert (
        "the cluster is replaced: Cluster (AWS::SageMaker::Cluster) in esm2-slurm-slurm-hyperpod"
        in output
    )
    # Also for stacks whose sections the file has not: it may have had them.
    names = stack_names(shipped("slurm"))
    assert [operation for _, operation in aws.calls] == ["GetTemplate"] * len(names)
    cluster = f"cluster={REPOSITORY / 'clusters/slurm.yaml'}"
    arguments = (checkout / "node.arguments").read_text().splitlines()
    stacks = ["SlurmNetworkStack", "SlurmStorageStack", "SlurmHyperPodStack"]
    assert arguments == ["node_modules/aws-cdk/bin/cdk", "diff", *stacks, "--context", cluster]


def test_templates_of_a_folder_are_compared_without_credentials(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(template_diff, "open_session", None)
    shutil.copytree(checkout / "cdk.out", checkout / "old")
    cluster = templates()["hyperpod"]
    cluster["Resources"]["Cluster"]["Properties"]["InstanceGroups"][0]["InstanceCount"] = 4
    (checkout / "cdk.out/SlurmHyperPodStack.template.json").write_text(json.dumps(cluster))
    assert run(["--against", "old"], monkeypatch) == 0
    assert "note: group workers changes from 2 to 4 instances" in capsys.readouterr().out
    last = (checkout / "node.arguments").read_text().splitlines()[1:]
    saved = ["--template", "old/SlurmHyperPodStack.template.json"]
    assert last == ["--app", "cdk.out", "diff", "--exclusively", "SlurmHyperPodStack", *saved]
    storage = templates()["storage"]
    storage["Resources"]["Lustre"]["Properties"]["StorageType"] = "HDD"
    (checkout / "cdk.out/SlurmStorageStack.template.json").write_text(json.dumps(storage))
    assert run(["--against", "old"], monkeypatch) == 1
    (checkout / "old/SlurmStorageStack.template.json").unlink()
    assert run(["--against", "old"], monkeypatch) == 0
    assert "note: stack SlurmStorageStack is new" in capsys.readouterr().out
    for folder, message in (
        ("bin", "expected templates such as Slurm"),
        ("cdk.out", "give a copy of it"),
    ):
        with pytest.raises(ValueError, match=message):
            run(["--against", folder], monkeypatch)


def test_a_first_deployment_loses_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed({"network": templates()["network"]}, monkeypatch)
    assert run([], monkeypatch) == 0


def test_reports_a_name_that_no_stack_has(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployed({}, monkeypatch)
    assert run([], monkeypatch) == 0
    assert "us-west-2 has no stack of cluster esm2-slurm" in capsys.readouterr().out


def test_without_credentials_the_command_line_is_not_asked(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = SimpleNamespace(get_credentials=lambda: None)
    monkeypatch.setattr(template_diff, "open_session", lambda region, profile: session)
    with pytest.raises(NoCredentialsError):
        run([], monkeypatch)
    assert not (checkout / "node.arguments").exists()


def test_a_failed_cdk_diff_ends_the_command(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed({}, monkeypatch)
    monkeypatch.setenv("NODE_STATUS", "1")
    with pytest.raises(ValueError, match=r"bin/cdk diff .* ended with status 1"):
        run([], monkeypatch)
