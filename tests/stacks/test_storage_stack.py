from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.stacks.base_templates import Template, clusters, network_template, storage_template
from tests.stacks.found_resources import bucket
from tests.stacks.synthesized import load, synthesize

FILE_SYSTEM = "AWS::FSx::FileSystem"
ASSOCIATION = "AWS::FSx::DataRepositoryAssociation"
BUCKET = "AWS::S3::Bucket"
POLICY = "AWS::S3::BucketPolicy"
KEY = "AWS::KMS::Key"
LINKED = [name for name in clusters() if name != "unlinked"]
"""The configuration has no backups for them."""


def file_system(name: str, kind: str) -> dict[str, Any]:
    (found,) = (
        resource
        for resource in storage_template(name).resources(FILE_SYSTEM).values()
        if resource["Properties"]["FileSystemType"] == kind
    )
    return found


def policy_of(template: Template, bucket_id: str) -> dict[str, Any]:
    (found,) = (
        policy
        for policy in template.resources(POLICY).values()
        if policy["Properties"]["Bucket"] == {"Ref": bucket_id}
    )
    return found


def test_lustre_is_what_the_default_file_says() -> None:
    lustre = file_system("slurm", "LUSTRE")["Properties"]

    assert (lustre["StorageCapacity"], lustre["StorageType"]) == (1200, "SSD")
    assert lustre["FileSystemTypeVersion"] == "2.15"
    configuration = dict(lustre["LustreConfiguration"])
    (events,) = (
        logical_id
        for logical_id, found in storage_template("slurm").resources("AWS::Logs::LogGroup").items()
        if found["Properties"]["LogGroupName"].startswith("/aws/fsx/")
    )
    destination = [
        "arn:aws:logs:us-west-2:",
        {"Ref": "AWS::AccountId"},
        ":log-group:",
        {"Ref": events},
    ]
    assert configuration.pop("LogConfiguration") == {
        "Level": "WARN_ERROR",
        "Destination": {"Fn::Join": ["", destination]},
    }
    assert configuration == {
        "DeploymentType": "PERSISTENT_2",
        "PerUnitStorageThroughput": 250,
        "DataCompressionType": "LZ4",
        "EfaEnabled": False,
        "AutomaticBackupRetentionDays": 0,
        "MetadataConfiguration": {"Mode": "AUTOMATIC"},
    }


def test_lustre_follows_every_setting() -> None:
    lustre = file_system("slurm-p5", "LUSTRE")["Properties"]
    configuration = lustre["LustreConfiguration"]

    assert lustre["StorageCapacity"] == 9600
    assert configuration["PerUnitStorageThroughput"] == 500
    assert configuration["EfaEnabled"] is False
    assert configuration["MetadataConfiguration"] == {"Mode": "USER_PROVISIONED", "Iops": 12000}


@pytest.mark.parametrize("name", LINKED)
def test_a_linked_file_system_asks_for_no_backups(name: str) -> None:
    """FSx takes neither of a linked one: CreateBackup and CopyTagsToBackups in the API reference."""
    configuration = file_system(name, "LUSTRE")["Properties"]["LustreConfiguration"]

    assert configuration["AutomaticBackupRetentionDays"] == 0
    assert "CopyTagsToBackups" not in configuration


def test_a_file_system_without_a_bucket_is_backed_up() -> None:
    configuration = file_system("unlinked", "LUSTRE")["Properties"]["LustreConfiguration"]

    assert configuration["AutomaticBackupRetentionDays"] == 14
    assert configuration["CopyTagsToBackups"] is True
    assert not storage_template("unlinked").resources(ASSOCIATION)


@pytest.mark.parametrize("name", LINKED)
def test_the_data_bucket_and_lustre_follow_each_other(name: str) -> None:
    template = storage_template(name)
    (lustre,) = (
        logical_id
        for logical_id, resource in template.resources(FILE_SYSTEM).items()
        if resource["Properties"]["FileSystemType"] == "LUSTRE"
    )
    data, _ = bucket(template, "Data")
    association = template.only(ASSOCIATION)
    exported = {"Events": ["NEW", "CHANGED", "DELETED"]}
    # What goes from the bucket stays in a file system that the file may keep.
    imported = {"Events": ["NEW", "CHANGED"]}

    assert association["Properties"] == {
        "FileSystemId": {"Ref": lustre},
        "FileSystemPath": clusters()[name].storage.data_bucket.lustre_path,
        "DataRepositoryPath": {"Fn::Join": ["", ["s3://", {"Ref": data}]]},
        "BatchImportMetaDataOnCreate": True,
        "S3": {"AutoImportPolicy": imported, "AutoExportPolicy": exported},
    }
    (policy,) = association["DependsOn"]
    assert template.resources()[policy]["Properties"]["Bucket"] == {"Ref": data}


@pytest.mark.parametrize("name", list(clusters()))
def test_nothing_else_writes_the_buckets_notifications(name: str) -> None:
    """FSx sets its own; and no function of ours may touch a bucket."""
    template = storage_template(name)

    assert all("NotificationConfiguration" not in made for made in template.properties(BUCKET))
    assert not template.resources("AWS::Lambda::Function", "AWS::CloudFormation::CustomResource")
    assert not [r for r in template.resources().values() if r["Type"].startswith("Custom::")]


@pytest.mark.parametrize("name", list(clusters()))
def test_buckets_are_private_versioned_and_take_tls_only(name: str) -> None:
    template = storage_template(name)
    assert len(template.resources(BUCKET)) == 3 + (clusters()[name].mlflow is not None)
    for bucket_id, made in template.resources(BUCKET).items():
        properties = made["Properties"]
        assert properties["PublicAccessBlockConfiguration"] == {
            "BlockPublicAcls": True,
            "BlockPublicPolicy": True,
            "IgnorePublicAcls": True,
            "RestrictPublicBuckets": True,
        }
        assert properties["OwnershipControls"] == {
            "Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]
        }
        assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
        assert "AccessControl" not in properties
        denied = [
            statement["Condition"]
            for statement in policy_of(template, bucket_id)["Properties"]["PolicyDocument"][
                "Statement"
            ]
            if (statement["Effect"], statement["Principal"], statement["Action"])
            == ("Deny", {"AWS": "*"}, "s3:*")
        ]
        assert {"Bool": {"aws:SecureTransport": "false"}} in denied
        assert {"NumericLessThan": {"s3:TlsVersion": 1.2}} in denied


@pytest.mark.parametrize("name", list(clusters()))
def test_use_of_the_buckets_is_on_record(name: str) -> None:
    template = storage_template(name)
    logs, _ = bucket(template, "AccessLogs")
    statements = policy_of(template, logs)["Properties"]["PolicyDocument"]["Statement"]
    for construct_id in ("Data", "Artifacts"):
        source, made = bucket(template, construct_id)
        assert made["Properties"]["LoggingConfiguration"] == {
            "DestinationBucketName": {"Ref": logs},
            "LogFilePrefix": f"{construct_id}/",
        }
        (statement,) = (
            statement
            for statement in statements
            if statement["Effect"] == "Allow" and f"/{construct_id}/*" in str(statement["Resource"])
        )
        assert statement["Principal"] == {"Service": "logging.s3.amazonaws.com"}
        assert statement["Action"] == "s3:PutObject"
        assert statement["Condition"]["ArnLike"] == {
            "aws:SourceArn": {"Fn::GetAtt": [source, "Arn"]}
        }
        assert statement["Condition"]["StringEquals"] == {
            "aws:SourceAccount": {"Ref": "AWS::AccountId"}
        }


def test_old_versions_and_abandoned_uploads_expire() -> None:
    _, data = bucket(storage_template("slurm"), "Data")
    versions, uploads = data["Properties"]["LifecycleConfiguration"]["Rules"]

    assert versions["NoncurrentVersionExpiration"] == {"NoncurrentDays": 30}
    assert versions["ExpiredObjectDeleteMarker"] is True
    assert "ExpirationInDays" not in versions, "current objects are the data"
    assert uploads["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}


def test_what_the_file_keeps_is_kept() -> None:
    template = storage_template("slurm-p5")
    kept = template.resources(FILE_SYSTEM, ASSOCIATION, BUCKET, KEY)
    for construct_id in ("Artifacts", "MlflowMlflowArtifacts"):
        going, _ = bucket(template, construct_id)
        del kept[going]

    assert len(kept) == 2 + 1 + 2 + 1
    policies = [policy_of(template, name) for name in kept if kept[name]["Type"] == BUCKET]
    found = {resource["DeletionPolicy"] for resource in [*kept.values(), *policies]}
    # What a first deployment that fails has made holds nothing yet, but bills.
    assert found == {"RetainExceptOnCreate"}


@pytest.mark.parametrize("name", list(clusters()))
def test_the_artifact_bucket_goes_so_that_its_name_is_free(name: str) -> None:
    template = storage_template(name)
    artifacts, made = bucket(template, "Artifacts")

    assert made["DeletionPolicy"] == policy_of(template, artifacts)["DeletionPolicy"] == "Delete"


def test_what_the_file_destroys_is_destroyed_but_never_by_a_replacement() -> None:
    template = storage_template("destroyed")
    logs, log_bucket = bucket(template, "AccessLogs")
    destroyed = template.resources(FILE_SYSTEM, ASSOCIATION, BUCKET, KEY)
    del destroyed[logs]

    assert len(destroyed) == 2 + 1 + 2 + 1
    assert {resource["DeletionPolicy"] for resource in destroyed.values()} == {"Delete"}
    assert log_bucket["DeletionPolicy"] == policy_of(template, logs)["DeletionPolicy"]
    assert log_bucket["DeletionPolicy"] == "RetainExceptOnCreate"
    for name in clusters():
        replaced = storage_template(name).resources(FILE_SYSTEM).values()
        assert {resource["UpdateReplacePolicy"] for resource in replaced} == {"Retain"}


def test_a_home_file_system_that_may_go_can_go() -> None:
    """By default, FSx refuses to delete a file system with volumes or snapshots."""
    option = ["DELETE_CHILD_VOLUMES_AND_SNAPSHOTS"]

    assert (
        file_system("destroyed", "OPENZFS")["Properties"]["OpenZFSConfiguration"]["Options"]
        == option
    )
    assert "Options" not in file_system("slurm-p5", "OPENZFS")["Properties"]["OpenZFSConfiguration"]


def test_homes_are_exported_to_the_vpc_only_and_written_synchronously() -> None:
    configuration = file_system("slurm-p5", "OPENZFS")["Properties"]["OpenZFSConfiguration"]
    ((client,),) = (
        export["ClientConfigurations"]
        for export in configuration["RootVolumeConfiguration"]["NfsExports"]
    )
    (vpc,) = network_template("slurm-p5").properties("AWS::EC2::VPC")

    assert client["Clients"] == vpc["CidrBlock"]
    assert client["Options"] == ["rw", "crossmnt", "no_root_squash"]
    assert configuration["AutomaticBackupRetentionDays"] == 7
    assert configuration["ThroughputCapacity"] == 320


def test_file_systems_stand_in_the_first_zone_behind_the_clusters_group() -> None:
    for kind in ("LUSTRE", "OPENZFS"):
        made = file_system("slurm-p5", kind)["Properties"]
        exports = {
            output["Export"]["Name"]: output["Value"]
            for output in network_template("slurm-p5").body["Outputs"].values()
            if "Export" in output
        }
        (subnet,) = made["SubnetIds"]
        (group,) = made["SecurityGroupIds"]
        subnet_id = exports[subnet["Fn::ImportValue"]]["Ref"]
        group_id = exports[group["Fn::ImportValue"]]["Fn::GetAtt"][0]
        resources = network_template("slurm-p5").resources()
        assert resources[subnet_id]["Properties"]["AvailabilityZoneId"] == "use1-az6"
        assert resources[group_id]["Properties"]["GroupDescription"].startswith(
            "Nodes and file systems"
        )
    existing = file_system("existing", "LUSTRE")["Properties"]
    assert existing["SubnetIds"] == ["subnet-0123456789abcde00"]


def test_the_artifact_bucket_has_a_name_that_hyperpod_accepts() -> None:
    for name, cluster in clusters().items():
        _, made = bucket(storage_template(name), "Artifacts")
        parts = made["Properties"]["BucketName"]["Fn::Join"][1]
        resolved = "".join(part if isinstance(part, str) else "123456789012" for part in parts)
        assert resolved == f"sagemaker-{cluster.name}-123456789012-{cluster.region}"
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", resolved)


@pytest.mark.parametrize("efa", [True, False])
def test_synthesis_warns_that_efa_to_lustre_is_unused(efa: bool) -> None:
    storage = {"lustre": {"capacity_gib": 9600, "throughput_mbps_per_tib": 500, "efa": efa}}
    folder = synthesize(load("clusters/slurm-p5.yaml", storage=storage))
    entries = json.loads((folder / "SlurmStorageStack.metadata.json").read_text())
    found = [entry for place in entries.values() for entry in place]
    warnings = [entry["data"] for entry in found if entry["type"] == "aws:cdk:warning"]
    assert any("not pinned yet" in text for text in warnings) is efa
