"""A cluster of which everything exists already: deploy, destroy and teardown change and delete none of it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.reading.loader import load_cluster
from tests.local_aws.deployment import (
    ACCOUNT,
    REPOSITORY,
    LocalAws,
    Seen,
    assert_accepted,
    copy_checkout,
    objects_below,
    see,
)

pytestmark = pytest.mark.long

NAME = "esm2-guest"
REGION = "us-west-2"
FILE = "clusters/guest.yaml"
ROLE = "lab-nodes"
BUCKET = "lab-proteins-guest"
CIDR = "10.7.0.0/16"
TOOL = (sys.executable, "-m", "tools.stacks.deploy")
# What HyperPod's nodes need before they run (tests/local_aws/hyperpod_cluster.py).
_STATEMENTS = [
    {
        "Effect": "Allow",
        "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": [f"arn:aws:s3:::sagemaker-{NAME}-*"],
    }
]
_TRUST = {
    "Effect": "Allow",
    "Action": "sts:AssumeRole",
    "Principal": {"Service": "sagemaker.amazonaws.com"},
}


@dataclass(frozen=True)
class Lent:
    """Resources of other teams, and their descriptions by AWS."""

    vpc: str
    subnet: str
    routes: str
    groups: list[str]
    home: str

    def description(self, aws: LocalAws) -> dict[str, Any]:
        """Everything that a change could alter."""
        ec2 = aws.client("ec2", REGION)
        iam = aws.client("iam", REGION)
        s3 = aws.client("s3", REGION)
        systems = aws.client("fsx", REGION).describe_file_systems(FileSystemIds=[self.home])
        policies = iam.list_role_policies(RoleName=ROLE)["PolicyNames"]
        objects = s3.list_object_versions(Bucket=BUCKET)
        return {
            "groups": ec2.describe_security_groups(GroupIds=self.groups)["SecurityGroups"],
            "vpc": ec2.describe_vpcs(VpcIds=[self.vpc])["Vpcs"],
            "subnet": ec2.describe_subnets(SubnetIds=[self.subnet])["Subnets"][0]["Tags"],
            "routes": ec2.describe_route_tables(RouteTableIds=[self.routes])["RouteTables"],
            "role": iam.get_role(RoleName=ROLE)["Role"] | {"RoleLastUsed": None},
            "policies": [
                iam.get_role_policy(RoleName=ROLE, PolicyName=name)["PolicyDocument"]
                for name in policies
            ],
            "attached": iam.list_attached_role_policies(RoleName=ROLE)["AttachedPolicies"],
            "file system": systems["FileSystems"],
            "objects": [
                (item["Key"], item["VersionId"], item["ETag"]) for item in objects["Versions"]
            ],
            "deleted objects": objects.get("DeleteMarkers", []),
            "versioning": s3.get_bucket_versioning(Bucket=BUCKET).get("Status"),
            "notifications": s3.get_bucket_notification_configuration(Bucket=BUCKET).keys(),
        }


@pytest.fixture(scope="module")
def lent(aws: LocalAws) -> Lent:
    ec2 = aws.client("ec2", REGION)
    tags = [{"Key": "owner", "Value": "network team"}]
    vpc = ec2.create_vpc(CidrBlock=CIDR)["Vpc"]["VpcId"]
    found = ec2.create_subnet(VpcId=vpc, CidrBlock="10.7.0.0/20", AvailabilityZoneId="usw2-az2")
    subnet = found["Subnet"]["SubnetId"]
    ec2.create_tags(Resources=[subnet], Tags=tags)
    (table,) = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])[
        "RouteTables"
    ]
    groups = []
    for name in ("nodes", "storage"):
        group = ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"]
        rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
        groups.append(group)
    iam = aws.client("iam", REGION)
    trust = json.dumps({"Version": "2012-10-17", "Statement": [_TRUST]})
    iam.create_role(RoleName=ROLE, AssumeRolePolicyDocument=trust)
    policy = json.dumps({"Version": "2012-10-17", "Statement": _STATEMENTS})
    iam.put_role_policy(RoleName=ROLE, PolicyName="nodes", PolicyDocument=policy)
    s3 = aws.client("s3", REGION)
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket=BUCKET, Key="proteins.fasta", Body=b">one\nMKV\n")
    system = aws.client("fsx", REGION).create_file_system(
        FileSystemType="OPENZFS",
        StorageCapacity=256,
        SubnetIds=[subnet],
        SecurityGroupIds=groups,
        OpenZFSConfiguration={"DeploymentType": "SINGLE_AZ_HA_2", "ThroughputCapacity": 160},
    )["FileSystem"]
    return Lent(vpc, subnet, table["RouteTableId"], groups, system["FileSystemId"])


@pytest.fixture(scope="module")
def checkout(lent: Lent, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_checkout(tmp_path_factory.mktemp("guest") / "checkout")
    document = yaml.safe_load((REPOSITORY / "clusters" / "slurm.yaml").read_text())
    document |= {
        "name": NAME,
        "network": {
            "vpc": "existing",
            "vpc_id": lent.vpc,
            "cidr": CIDR,
            "private_subnets": [
                {
                    "subnet_id": lent.subnet,
                    "availability_zone_id": "usw2-az2",
                    "route_table_id": lent.routes,
                    "cidr": "10.7.0.0/20",
                }
            ],
            "security_group_ids": lent.groups,
        },
        "storage": {
            "lustre": "none",
            "home": {"existing": lent.home},
            "data_bucket": {"existing": BUCKET, "mount_path": "/data"},
        },
    }
    for group in document["instance_groups"]:
        group["execution_role"] = ROLE
    (folder / FILE).write_text(yaml.safe_dump(document))
    return folder


@pytest.fixture(scope="module")
def before(aws: LocalAws, lent: Lent) -> dict[str, Any]:
    return lent.description(aws)


@pytest.fixture(scope="module")
def deployed(aws: LocalAws, checkout: Path, before: dict[str, Any]) -> Seen:
    options = ("SlurmHyperPodStack", "--require-approval", "never", "--no-notices")
    return see(aws, REGION, aws.run(*TOOL, "deploy", "--cluster", FILE, *options, cwd=checkout))


@pytest.fixture(scope="module")
def torn_down(aws: LocalAws, checkout: Path, deployed: Seen) -> Seen:
    destroy = ("destroy", "--cluster", FILE, "SlurmHyperPodStack", "--force")
    aws.run(*TOOL, *destroy, cwd=checkout)
    teardown = ("-m", "tools.stacks.teardown", "--cluster", FILE, "--yes", NAME)
    return see(aws, REGION, aws.run(sys.executable, *teardown, cwd=checkout))


def test_the_rules_of_the_cdk_accept_the_file(checkout: Path) -> None:
    assert_accepted(load_cluster(checkout / FILE))


def test_the_cluster_runs_with_what_exists(aws: LocalAws, deployed: Seen, lent: Lent) -> None:
    cluster = deployed.clusters[NAME]
    assert cluster["ClusterStatus"] == "InService"
    assert cluster["VpcConfig"] == {"SecurityGroupIds": lent.groups, "Subnets": [lent.subnet]}
    for group in cluster["InstanceGroups"]:
        mounts = [next(iter(config)) for config in group["InstanceStorageConfigs"]]
        assert mounts == ["EbsVolumeConfig", "FsxOpenZfsConfig"]
    source = deployed.stacks[f"{NAME}-slurm-hyperpod"]["LifecycleSourceS3Uri"]
    told = json.loads(objects_below(deployed, source)["deployment.json"])
    assert told["data_bucket"] == BUCKET
    systems = aws.client("fsx", REGION).describe_file_systems()["FileSystems"]
    assert [one["FileSystemId"] for one in systems if lent.subnet in one["SubnetIds"]] == [
        lent.home
    ]
    roles = {group["ExecutionRole"] for group in cluster["InstanceGroups"]}
    assert roles == {f"arn:aws:iam::{ACCOUNT}:role/{ROLE}"}


def test_a_deployment_changes_none_of_it(
    aws: LocalAws, deployed: Seen, lent: Lent, before: dict[str, Any]
) -> None:
    assert lent.description(aws) == before


def test_destroy_and_teardown_delete_and_change_none_of_it(
    aws: LocalAws, torn_down: Seen, lent: Lent, before: dict[str, Any]
) -> None:
    assert lent.description(aws) == before
    assert NAME not in torn_down.clusters
    assert not [name for name in torn_down.stacks if name.startswith(NAME)]
