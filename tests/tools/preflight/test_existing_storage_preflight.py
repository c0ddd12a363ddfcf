"""Checks of storage that the cluster file names instead of new."""

from __future__ import annotations

from typing import Any

import pytest

from config.cluster import Cluster
from tests.tools.accounts import STARTED, empty_account
from tests.tools.answering_aws import AnsweringAws, Parameters
from tests.tools.cluster_files import shipped
from tests.tools.preflight.report import findings

LUSTRE = "fs-0123456789abcdef0"
HOME = "fs-0fedcba9876543210"
BUCKET = "lab-proteins"
VPC = "vpc-0123456789abcdef0"
NETWORK = "esm2-slurm-slurm-network"
STORAGE = {
    "lustre": {"existing": {"file_system_id": LUSTRE, "mount_name": "abcdev4v"}},
    "home": {"existing": HOME},
    "data_bucket": {"existing": BUCKET},
}


def cluster() -> Cluster:
    return shipped("slurm", storage=STORAGE)


class Existing:
    """An account with the storage of an earlier deployment, and its network stack."""

    def __init__(self) -> None:
        common = {
            "Lifecycle": "AVAILABLE",
            "VpcId": VPC,
            "NetworkInterfaceIds": ["eni-0123456789abcdef0"],
        }
        self.lustre: dict[str, Any] = {
            "FileSystemId": LUSTRE,
            "FileSystemType": "LUSTRE",
            "StorageCapacity": 1200,
            "LustreConfiguration": {
                "DeploymentType": "PERSISTENT_2",
                "MountName": "abcdev4v",
                "PerUnitStorageThroughput": 250,
                "EfaEnabled": False,
            },
            **common,
        }
        self.home: dict[str, Any] = {
            "FileSystemId": HOME,
            "FileSystemType": "OPENZFS",
            "StorageCapacity": 256,
            "OpenZFSConfiguration": {"ThroughputCapacity": 160},
            **common,
        }
        self.links = [
            {
                "FileSystemId": LUSTRE,
                "FileSystemPath": "/data",
                "DataRepositoryPath": f"s3://{BUCKET}",
            }
        ]
        self.group = f"{NETWORK}-NetworkNodes1A2B-C3D4"
        self.vpc = VPC
        self.network = True
        self.region = "us-west-2"
        self.versioning = {"Status": "Enabled"}

    def account(self, cluster: Cluster) -> AnsweringAws:
        aws = empty_account(cluster)
        aws.answer("fsx", "DescribeFileSystems", {"FileSystems": [self.lustre, self.home]})
        aws.answer("fsx", "DescribeDataRepositoryAssociations", {"Associations": self.links})
        interface = {"Groups": [{"GroupId": "sg-0123", "GroupName": self.group}]}
        aws.answer("ec2", "DescribeNetworkInterfaces", {"NetworkInterfaces": [interface]})
        aws.answer("ec2", "DescribeVpcs", {"Vpcs": [{"VpcId": self.vpc}]})
        aws.answer("s3", "HeadBucket", {"BucketRegion": self.region})
        aws.answer("s3", "GetBucketVersioning", self.versioning)
        absent = aws.answers["cloudformation", "DescribeStacks"]

        def stacks(parameters: Parameters) -> dict[str, Any]:
            if parameters["StackName"] == NETWORK and self.network:
                status = {"StackName": NETWORK, "StackStatus": "UPDATE_COMPLETE"}
                return {"Stacks": [status | {"CreationTime": STARTED}]}
            return absent(parameters)

        aws.answer("cloudformation", "DescribeStacks", stacks)
        return aws


def levels(existing: Existing) -> dict[str, list[str]]:
    """Messages about the existing storage, by level."""
    found: dict[str, list[str]] = {}
    for finding in findings(existing.account(cluster()), cluster()):
        if any(name in finding.subject for name in (LUSTRE, HOME, f"bucket {BUCKET}")):
            found.setdefault(finding.level, []).append(f"{finding.message} -> {finding.action}")
    return found


def test_accepts_what_an_earlier_deployment_kept() -> None:
    found = levels(Existing())
    assert found.keys() == {"OK"} and len(found["OK"]) == 3


FAULTS = {
    "another size": (
        lambda e: e.lustre.update(StorageCapacity=2400),
        "capacity_gib is 1200",
        "set it to 2400",
    ),
    "another mount name": (
        lambda e: e.lustre["LustreConfiguration"].update(MountName="fsx"),
        "existing.mount_name is abcdev4v, the file system has fsx",
        "set it to fsx",
    ),
    "no such id": (
        lambda e: e.home.update(FileSystemId="fs-00000000000000000"),
        "does not exist",
        "of this region",
    ),
    "another type": (
        lambda e: e.home.update(FileSystemType="ONTAP"),
        "is of type ONTAP",
        "OPENZFS",
    ),
    "going": (lambda e: e.home.update(Lifecycle="DELETING"), "is DELETING", "wait"),
    "another VPC": (
        lambda e: setattr(e, "vpc", "vpc-0fedcba9876543210"),
        "the cluster in vpc-0fedcba9876543210",
        "set one of",
    ),
    "no network": (
        lambda e: setattr(e, "network", False),
        "create another VPC",
        "network.vpc_id: vpc-0123456789abcdef0",
    ),
    "no link": (
        lambda e: e.links.clear(),
        "linked to no bucket",
        "create-data-repository-association",
    ),
    "another region": (
        lambda e: setattr(e, "region", "eu-west-1"),
        "is in eu-west-1",
        "of this region",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_refuses_storage_that_does_not_fit(name: str) -> None:
    change, message, action = FAULTS[name]
    existing = Existing()
    change(existing)
    failures = levels(existing)["FAIL"]
    assert any(message in failure and action in failure for failure in failures), failures


def test_warns_of_another_security_group_and_of_a_bucket_without_versions() -> None:
    existing = Existing()
    existing.group = "default"
    existing.versioning = {}
    warnings = levels(existing)["WARN"]
    assert len([text for text in warnings if "let the cluster's security group in" in text]) == 2
    assert any("keeps no versions" in text for text in warnings)


def test_a_new_bucket_cannot_take_the_directory_of_another_link() -> None:
    changed = shipped("slurm", storage={"lustre": STORAGE["lustre"]})
    found = findings(Existing().account(changed), changed)
    (failure,) = [
        finding for finding in found if finding.level == "FAIL" and LUSTRE in finding.subject
    ]
    assert f"set storage.data_bucket.existing: {BUCKET}" in failure.action
