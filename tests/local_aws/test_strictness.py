"""The local AWS refuses what it does not model, and fails like the service."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.local_aws.deployment import ACCOUNT, LocalAws
from tests.local_aws.template_stacks import REGION, Resources, Stacks

ASSETS = "assets-of-tests"
SCRIPTS = "sagemaker-scripts-of-tests"
READS = ("s3:GetObject", "s3:ListBucket")
NOBODY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "sts:AssumeRole"}],
}


@pytest.fixture(scope="module")
def stacks(empty_aws: LocalAws) -> Stacks:
    return Stacks(empty_aws)


def bucket(name: str, **more: Any) -> dict[str, Any]:
    return {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": name}, **more}


def network() -> Resources:
    subnet = {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "10.0.0.0/24", "AvailabilityZoneId": "euw1-az1"}
    group = {"VpcId": {"Ref": "Vpc"}, "GroupDescription": "of the cluster"}
    return {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
        "Subnet": {"Type": "AWS::EC2::Subnet", "Properties": subnet},
        "Group": {"Type": "AWS::EC2::SecurityGroup", "Properties": group},
    }


def role(*actions: str) -> dict[str, Any]:
    """A role that may do these on anything."""
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    policy = {
        "PolicyName": "Objects",
        "PolicyDocument": {"Version": "2012-10-17", "Statement": [statement]},
    }
    properties = {"AssumeRolePolicyDocument": NOBODY, "Policies": [policy] if actions else []}
    return {"Type": "AWS::IAM::Role", "Properties": properties}


def upload(
    keys: list[str], *, actions: tuple[str, ...] = ("s3:GetObject", "s3:PutObject"), **more: Any
) -> Resources:
    """A function without a caller, and the resource that it would handle."""
    code = {"Code": {"S3Bucket": ASSETS, "S3Key": "files.zip"}, "Handler": "index.handler"}
    runs = {"Runtime": "python3.13", "Role": {"Fn::GetAtt": ["UploadRole", "Arn"]}}
    asset = {"SourceBucketNames": [ASSETS] * len(keys), "SourceObjectKeys": keys}
    handler = {"ServiceToken": {"Fn::GetAtt": ["Function", "Arn"]}}
    return {
        "UploadRole": role(*actions),
        "Function": {"Type": "AWS::Lambda::Function", "Properties": {**code, **runs}},
        "Upload": {
            "Type": "Custom::CDKBucketDeployment",
            "Properties": {**asset, **handler, **more},
        },
    }


def cluster(count: int, prefix: str, *actions: str, **more: Any) -> Resources:
    """A cluster of this many nodes, whose script is a.txt under the prefix of the bucket SCRIPTS."""
    script = {"SourceS3Uri": f"s3://{SCRIPTS}/{prefix}/", "OnInitComplete": "a.txt"}
    group = {
        "InstanceGroupName": "workers",
        "InstanceType": "ml.p5en.48xlarge",
        "InstanceCount": count,
    }
    start = {"ExecutionRole": {"Fn::GetAtt": ["NodeRole", "Arn"]}, "LifeCycleConfig": script}
    place = {"SecurityGroupIds": [{"Ref": "Group"}], "Subnets": [{"Ref": "Subnet"}]}
    properties = {
        "ClusterName": "counted",
        "InstanceGroups": [{**group, **start}],
        "VpcConfig": place,
    }
    return {
        **network(),
        "NodeRole": role(*actions),
        "Cluster": {"Type": "AWS::SageMaker::Cluster", "Properties": properties, **more},
    }


@pytest.fixture(scope="module")
def s3(empty_aws: LocalAws) -> Any:
    """A client, and a bucket of assets: files.zip with a.txt, less.zip with b.txt."""
    s3 = empty_aws.client("s3", REGION)
    for name in (ASSETS, SCRIPTS):
        s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    for name, member in (("files.zip", "a.txt"), ("less.zip", "b.txt")):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as files:
            files.writestr(member, f"contents of {member}")
        s3.put_object(Bucket=ASSETS, Key=name, Body=archive.getvalue())
    return s3


def keys(s3: Any, name: str) -> set[str]:
    return {item["Key"] for item in s3.list_objects_v2(Bucket=name).get("Contents", [])}


def test_cdk_deploy_fails_for_a_type_that_is_not_modelled(
    empty_aws: LocalAws, tmp_path: Path
) -> None:
    stack = {
        "type": "aws:cloudformation:stack",
        "environment": f"aws://{ACCOUNT}/{REGION}",
        "properties": {"templateFile": "template.json"},
    }
    manifest = {"version": "36.0.0", "artifacts": {"Unknown": stack}}
    template = {
        "Resources": {"Table": {"Type": "AWS::Timestream::Table"}, "Data": bucket("never-made")}
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "template.json").write_text(json.dumps(template))
    output = empty_aws.cdk(
        "deploy", "--app", str(tmp_path), "Unknown", cwd=tmp_path, succeeds=False
    )
    assert "Unrecognized resource types: [AWS::Timestream::Table]" in output
    buckets = empty_aws.client("s3", REGION).list_buckets()["Buckets"]
    assert "never-made" not in {item["Name"] for item in buckets}


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (
            {
                "Type": "AWS::EC2::VPC",
                "Properties": {"CidrBlock": "10.0.0.0/16", "Ipv4IpamPoolId": 1, "Cdir": 1},
            },
            "Cdir",
        ),
        (bucket("not-versioned", Properties={"ObjectLockEnabled": True}), "ObjectLockEnabled"),
        (
            {
                "Type": "AWS::SSM::Parameter",
                "Properties": {
                    "Name": "/n",
                    "Type": "String",
                    "Value": {"Fn::GetAtt": ["First", "Nothing"]},
                },
            },
            "no attribute Nothing",
        ),
    ],
)
def test_properties_that_are_not_modelled_fail_and_roll_back(
    stacks: Stacks, s3: Any, broken: dict[str, Any], reason: str
) -> None:
    status = stacks.deploy(
        "broken", {"First": bucket("first-of-two"), "Second": {**broken, "DependsOn": "First"}}
    )
    assert status == "ROLLBACK_COMPLETE"
    assert reason in stacks.reasons("broken")
    assert "first-of-two" not in {item["Name"] for item in s3.list_buckets()["Buckets"]}
    stacks.delete("broken")


def test_deletion_honours_retention(stacks: Stacks, s3: Any) -> None:
    resources = {
        "Kept": bucket("kept-bucket", DeletionPolicy="Retain"),
        "Deployed": bucket("deployed-bucket", DeletionPolicy="RetainExceptOnCreate"),
        "Gone": bucket("gone-bucket"),
    }
    assert stacks.deploy("retention", resources) == "CREATE_COMPLETE"
    assert stacks.delete("retention") == "DELETE_COMPLETE"
    left = {item["Name"] for item in s3.list_buckets()["Buckets"]}
    assert {"kept-bucket", "deployed-bucket"} <= left and "gone-bucket" not in left


def test_failed_creation_keeps_only_what_is_retained_always(stacks: Stacks, s3: Any) -> None:
    resources = {
        "Always": bucket("always-kept", DeletionPolicy="Retain"),
        "Deployed": bucket("never-deployed", DeletionPolicy="RetainExceptOnCreate"),
        "Broken": bucket("broken", Properties={"NoSuch": 1}, DependsOn=["Always", "Deployed"]),
    }
    assert stacks.deploy("failing", resources) == "ROLLBACK_COMPLETE"
    left = {item["Name"] for item in s3.list_buckets()["Buckets"]}
    assert "always-kept" in left and "never-deployed" not in left
    assert stacks.delete("failing") == "DELETE_COMPLETE"


def test_upload_unpacks_prunes_and_retains_as_configured(stacks: Stacks, s3: Any) -> None:
    s3.create_bucket(Bucket="uploaded", CreateBucketConfiguration={"LocationConstraint": REGION})
    to: dict[str, Any] = {
        "DestinationBucketName": "uploaded",
        "DestinationBucketKeyPrefix": "code",
        "RetainOnDelete": False,
    }
    assert stacks.deploy("upload", upload(["files.zip", "less.zip"], **to)) == "CREATE_COMPLETE"
    assert s3.get_object(Bucket="uploaded", Key="code/a.txt")["Body"].read() == b"contents of a.txt"
    s3.put_object(Bucket="uploaded", Key="beside.txt", Body=b"")
    stacks.deploy("upload", upload(["less.zip"], **to, Prune=False), kind="UPDATE")
    assert keys(s3, "uploaded") == {"code/a.txt", "code/b.txt", "beside.txt"}
    stacks.deploy("upload", upload(["less.zip"], **to, Prune=True), kind="UPDATE")
    assert keys(s3, "uploaded") == {"code/b.txt", "beside.txt"}
    stacks.delete("upload")
    assert keys(s3, "uploaded") == {"beside.txt"}


@pytest.mark.parametrize(
    ("keys", "actions", "reason"),
    [
        (["absent.zip"], ("s3:GetObject", "s3:PutObject"), "there is no object"),
        (["files.zip"], ("s3:GetObject",), "may not s3:PutObject"),
        (["files.zip"], ("s3:PutObject",), "may not s3:GetObject"),
    ],
)
def test_upload_fails_without_its_asset_or_its_rights(
    stacks: Stacks, s3: Any, keys: list[str], actions: tuple[str, ...], reason: str
) -> None:
    to = {"DestinationBucketName": {"Ref": "To"}}
    resources = {"To": bucket("upload-to"), **upload(keys, actions=actions, **to)}
    assert stacks.deploy("upload", resources) == "ROLLBACK_COMPLETE"
    assert reason in stacks.reasons("upload")
    stacks.delete("upload")


def test_cluster_whose_script_is_not_there_yet_fails(stacks: Stacks, s3: Any) -> None:
    """Nothing but a declared dependency makes the cluster wait for the upload."""
    to: dict[str, Any] = {
        "DestinationBucketName": SCRIPTS,
        "DestinationBucketKeyPrefix": "late",
        "RetainOnDelete": False,
    }
    resources = upload(["files.zip"], **to) | cluster(1, "late", *READS)
    assert stacks.deploy("hasty", resources) == "ROLLBACK_COMPLETE"
    assert f"no object s3://{SCRIPTS}/late/a.txt" in stacks.reasons("hasty")
    stacks.delete("hasty")
    resources = upload(["files.zip"], **to) | cluster(1, "late", *READS, DependsOn=["Upload"])
    assert stacks.deploy("patient", resources) == "CREATE_COMPLETE"
    assert stacks.delete("patient") == "DELETE_COMPLETE"


def test_cluster_whose_nodes_may_not_read_their_script_fails(stacks: Stacks, s3: Any) -> None:
    s3.put_object(Bucket=SCRIPTS, Key="there/a.txt", Body=b"")
    assert stacks.deploy("barred", cluster(1, "there", "s3:ListBucket")) == "ROLLBACK_COMPLETE"
    assert f"may not s3:GetObject arn:aws:s3:::{SCRIPTS}/there/a.txt" in stacks.reasons("barred")
    stacks.delete("barred")


@pytest.mark.parametrize("missing", ["kms:CreateGrant", "kms:DescribeKey"])
def test_cluster_whose_nodes_may_not_use_the_key_of_their_volumes_fails(
    stacks: Stacks, s3: Any, missing: str
) -> None:
    s3.put_object(Bucket=SCRIPTS, Key="there/a.txt", Body=b"")
    key = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1234abcd-12ab-34cd-56ef-1234567890ab"
    resources = cluster(1, "there", *READS, *({"kms:CreateGrant", "kms:DescribeKey"} - {missing}))
    (group,) = resources["Cluster"]["Properties"]["InstanceGroups"]
    group["InstanceStorageConfigs"] = [
        {"EbsVolumeConfig": {"RootVolume": True, "VolumeKmsKeyId": key}}
    ]
    assert stacks.deploy("keyless", resources) == "ROLLBACK_COMPLETE"
    assert f"may not {missing} {key}" in stacks.reasons("keyless")
    stacks.delete("keyless")


def test_cluster_follows_its_count(empty_aws: LocalAws, stacks: Stacks, s3: Any) -> None:
    def nodes() -> list[str]:
        found = empty_aws.client("sagemaker", REGION).list_cluster_nodes(ClusterName="counted")
        return [node["InstanceId"] for node in found["ClusterNodeSummaries"]]

    s3.put_object(Bucket=SCRIPTS, Key="there/a.txt", Body=b"")
    assert stacks.deploy("counted", cluster(2, "there", *READS)) == "CREATE_COMPLETE"
    first = nodes()
    grown = cluster(3, "there", *READS)
    assert stacks.deploy("counted", grown, kind="UPDATE") == "UPDATE_COMPLETE"
    assert nodes()[:2] == first and len(nodes()) == 3
    shrunk = cluster(1, "there", *READS)
    assert stacks.deploy("counted", shrunk, kind="UPDATE") == "UPDATE_COMPLETE"
    assert nodes() == first[:1]
    assert stacks.delete("counted") == "DELETE_COMPLETE"


def test_exports_in_use_keep_their_stack(stacks: Stacks, s3: Any) -> None:
    output = {"Name": {"Value": {"Ref": "Bucket"}, "Export": {"Name": "shared-name"}}}
    parameter = {"Type": "String", "Value": {"Fn::ImportValue": "shared-name"}}
    stacks.deploy("exporter", {"Bucket": bucket("exported-bucket")}, outputs=output)
    stacks.deploy(
        "importer",
        {"Copy": {"Type": "AWS::SSM::Parameter", "Properties": {"Name": "/copy", **parameter}}},
    )
    with pytest.raises(
        ClientError, match=r"shared-name cannot be deleted as it is in use by .*importer"
    ):
        stacks.delete("exporter")
    assert stacks.delete("importer") == stacks.delete("exporter") == "DELETE_COMPLETE"


def test_network_of_a_file_system_cannot_be_deleted(empty_aws: LocalAws, stacks: Stacks) -> None:
    assert stacks.deploy("held", network()) == "CREATE_COMPLETE"
    resources = stacks.cloudformation.describe_stack_resources(StackName="held")["StackResources"]
    (subnet,) = [r["PhysicalResourceId"] for r in resources if r["LogicalResourceId"] == "Subnet"]
    fsx = empty_aws.client("fsx", REGION)
    made = fsx.create_file_system(
        FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[subnet]
    )["FileSystem"]
    assert stacks.delete("held") == "DELETE_FAILED"
    fsx.delete_file_system(FileSystemId=made["FileSystemId"])
    assert stacks.delete("held") == "DELETE_COMPLETE"
