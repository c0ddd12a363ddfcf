"""That the local AWS refuses what it does not model, and fails where the service would."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.local_aws.deployment import ACCOUNT, LocalAws

REGION = "eu-west-1"  # apart from the regions of the shipped cluster files
NOBODY = {"Statement": [{"Effect": "Deny", "Principal": "*", "Action": "sts:AssumeRole"}]}

Resources = dict[str, dict[str, Any]]


class Stacks:
    """Stacks by their templates, without the command line."""

    def __init__(self, aws: LocalAws) -> None:
        self.cloudformation = aws.client("cloudformation", REGION)

    def deploy(self, name: str, resources: Resources, *, kind: str = "CREATE", outputs: Any = None) -> str:
        """Returns the status."""
        template = {"Resources": resources, "Outputs": outputs or {}}
        change_set = self.cloudformation.create_change_set(
            StackName=name, ChangeSetName="change", ChangeSetType=kind, TemplateBody=json.dumps(template)
        )
        self.cloudformation.execute_change_set(ChangeSetName=change_set["Id"])
        self.cloudformation.delete_change_set(ChangeSetName=change_set["Id"])
        return self.status(name)

    def delete(self, name: str) -> str:
        stack_id = self.cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackId"]
        self.cloudformation.delete_stack(StackName=name)
        return self.status(stack_id)

    def status(self, name: str) -> str:
        return str(self.cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"])

    def reasons(self, name: str) -> str:
        events = self.cloudformation.describe_stack_events(StackName=name)["StackEvents"]
        return "\n".join(event.get("ResourceStatusReason", "") for event in events)


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


def upload(keys: list[str], **more: Any) -> Resources:
    """A function that nobody calls, and what it would be called for."""
    code = {"Code": {"S3Bucket": "assets-of-tests", "S3Key": "files.zip"}, "Handler": "index.handler"}
    runs = {"Runtime": "python3.13", "Role": {"Fn::GetAtt": ["Role", "Arn"]}}
    asset = {"SourceBucketNames": ["assets-of-tests"] * len(keys), "SourceObjectKeys": keys}
    handler = {"ServiceToken": {"Fn::GetAtt": ["Function", "Arn"]}}
    return {
        "Role": {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": NOBODY}},
        "Function": {"Type": "AWS::Lambda::Function", "Properties": {**code, **runs}},
        "Upload": {"Type": "Custom::CDKBucketDeployment", "Properties": {**asset, **handler, **more}},
    }


@pytest.fixture(scope="module")
def s3(empty_aws: LocalAws) -> Any:
    """A client, and a bucket of assets: files.zip with a.txt, less.zip with b.txt."""
    s3 = empty_aws.client("s3", REGION)
    s3.create_bucket(Bucket="assets-of-tests", CreateBucketConfiguration={"LocationConstraint": REGION})
    for name, member in (("files.zip", "a.txt"), ("less.zip", "b.txt")):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as files:
            files.writestr(member, f"contents of {member}")
        s3.put_object(Bucket="assets-of-tests", Key=name, Body=archive.getvalue())
    return s3


def keys(s3: Any, name: str) -> set[str]:
    return {item["Key"] for item in s3.list_objects_v2(Bucket=name).get("Contents", [])}


def test_cdk_deploy_fails_for_a_type_that_is_not_modelled(empty_aws: LocalAws, tmp_path: Path) -> None:
    stack = {
        "type": "aws:cloudformation:stack",
        "environment": f"aws://{ACCOUNT}/{REGION}",
        "properties": {"templateFile": "template.json"},
    }
    manifest = {"version": "36.0.0", "artifacts": {"Unknown": stack}}
    template = {"Resources": {"Table": {"Type": "AWS::Timestream::Table"}, "Data": bucket("never-made")}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "template.json").write_text(json.dumps(template))
    output = empty_aws.cdk("deploy", "--app", str(tmp_path), "Unknown", cwd=tmp_path, succeeds=False)
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
                "Properties": {"Name": "/n", "Type": "String", "Value": {"Fn::GetAtt": ["First", "Nothing"]}},
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
    resources = {"Kept": bucket("kept-bucket", DeletionPolicy="Retain"), "Gone": bucket("gone-bucket")}
    assert stacks.deploy("retention", resources) == "CREATE_COMPLETE"
    assert stacks.delete("retention") == "DELETE_COMPLETE"
    left = {item["Name"] for item in s3.list_buckets()["Buckets"]}
    assert "kept-bucket" in left and "gone-bucket" not in left


def test_upload_unpacks_prunes_and_retains_as_told(stacks: Stacks, s3: Any) -> None:
    s3.create_bucket(Bucket="uploaded", CreateBucketConfiguration={"LocationConstraint": REGION})
    to = {"DestinationBucketName": "uploaded", "DestinationBucketKeyPrefix": "code", "RetainOnDelete": False}
    assert stacks.deploy("upload", upload(["files.zip", "less.zip"], **to)) == "CREATE_COMPLETE"
    assert s3.get_object(Bucket="uploaded", Key="code/a.txt")["Body"].read() == b"contents of a.txt"
    s3.put_object(Bucket="uploaded", Key="beside.txt", Body=b"")
    stacks.deploy("upload", upload(["less.zip"], **to, Prune=False), kind="UPDATE")
    assert keys(s3, "uploaded") == {"code/a.txt", "code/b.txt", "beside.txt"}
    stacks.deploy("upload", upload(["less.zip"], **to, Prune=True), kind="UPDATE")
    assert keys(s3, "uploaded") == {"code/b.txt", "beside.txt"}
    stacks.delete("upload")
    assert keys(s3, "uploaded") == {"beside.txt"}


def test_upload_of_an_asset_that_is_not_there_fails(stacks: Stacks, s3: Any) -> None:
    resources = {"To": bucket("upload-to"), **upload(["absent.zip"], DestinationBucketName={"Ref": "To"})}
    assert stacks.deploy("absent", resources) == "ROLLBACK_COMPLETE"
    assert "NoSuchKey" in stacks.reasons("absent")


def test_cluster_needs_its_script_and_follows_its_count(empty_aws: LocalAws, stacks: Stacks, s3: Any) -> None:
    def resources(count: int) -> Resources:
        script = {"SourceS3Uri": "s3://sagemaker-scripts/v1/", "OnInitComplete": "setup.sh"}
        group = {"InstanceGroupName": "workers", "InstanceType": "ml.p5en.48xlarge", "InstanceCount": count}
        role = {"ExecutionRole": {"Fn::GetAtt": ["Role", "Arn"]}, "LifeCycleConfig": script}
        vpc = {"SecurityGroupIds": [{"Ref": "Group"}], "Subnets": [{"Ref": "Subnet"}]}
        cluster = {"ClusterName": "counted", "InstanceGroups": [{**group, **role}], "VpcConfig": vpc}
        return {
            **network(),
            "Role": {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": NOBODY}},
            "Cluster": {"Type": "AWS::SageMaker::Cluster", "Properties": cluster},
        }

    def nodes() -> list[str]:
        found = empty_aws.client("sagemaker", REGION).list_cluster_nodes(ClusterName="counted")
        return [node["InstanceId"] for node in found["ClusterNodeSummaries"]]

    s3.create_bucket(Bucket="sagemaker-scripts", CreateBucketConfiguration={"LocationConstraint": REGION})
    assert stacks.deploy("scriptless", resources(1)) == "ROLLBACK_COMPLETE"
    assert "no object s3://sagemaker-scripts/v1/setup.sh" in stacks.reasons("scriptless")
    s3.put_object(Bucket="sagemaker-scripts", Key="v1/setup.sh", Body=b"")
    assert stacks.deploy("counted", resources(2)) == "CREATE_COMPLETE"
    first = nodes()
    assert stacks.deploy("counted", resources(3), kind="UPDATE") == "UPDATE_COMPLETE"
    assert nodes()[:2] == first and len(nodes()) == 3
    assert stacks.deploy("counted", resources(1), kind="UPDATE") == "UPDATE_COMPLETE"
    assert nodes() == first[:1]
    assert stacks.delete("counted") == "DELETE_COMPLETE"


def test_exports_in_use_keep_their_stack(stacks: Stacks, s3: Any) -> None:
    output = {"Name": {"Value": {"Ref": "Bucket"}, "Export": {"Name": "shared-name"}}}
    parameter = {"Type": "String", "Value": {"Fn::ImportValue": "shared-name"}}
    stacks.deploy("exporter", {"Bucket": bucket("exported-bucket")}, outputs=output)
    stacks.deploy(
        "importer", {"Copy": {"Type": "AWS::SSM::Parameter", "Properties": {"Name": "/copy", **parameter}}}
    )
    with pytest.raises(ClientError, match=r"shared-name cannot be deleted as it is in use by .*importer"):
        stacks.delete("exporter")
    assert stacks.delete("importer") == stacks.delete("exporter") == "DELETE_COMPLETE"


def test_network_of_a_file_system_cannot_be_deleted(empty_aws: LocalAws, stacks: Stacks) -> None:
    assert stacks.deploy("held", network()) == "CREATE_COMPLETE"
    resources = stacks.cloudformation.describe_stack_resources(StackName="held")["StackResources"]
    (subnet,) = [r["PhysicalResourceId"] for r in resources if r["LogicalResourceId"] == "Subnet"]
    fsx = empty_aws.client("fsx", REGION)
    made = fsx.create_file_system(FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[subnet])[
        "FileSystem"
    ]
    assert stacks.delete("held") == "DELETE_FAILED"
    fsx.delete_file_system(FileSystemId=made["FileSystemId"])
    assert stacks.delete("held") == "DELETE_COMPLETE"
