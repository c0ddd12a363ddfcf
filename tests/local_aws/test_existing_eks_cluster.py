"""A HyperPod cluster in an EKS cluster that exists: deploy, destroy and teardown change none of it."""

from __future__ import annotations

import json
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.reading.loader import load_cluster
from tests.local_aws.deployment import (
    ACCOUNT,
    CHARTS,
    REPOSITORY,
    LocalAws,
    Seen,
    assert_accepted,
    copy_checkout,
    see,
)

pytestmark = pytest.mark.long

NAME = "esm2-tenant"
EKS_NAME = "lab-eks"
REGION = "us-west-2"
FILE = "clusters/tenant.yaml"
CIDR = "10.9.0.0/16"
TENANT = "lab-tenant"
TOOL = (sys.executable, "-m", "tools.stacks.deploy")
NEVER_ASK = ("--require-approval", "never", "--no-notices")
HYPERPOD = f"{NAME}-eks-hyperpod"
ADDONS = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
"""Add-ons that become active without nodes, which this EKS cluster does not have."""
LEFT = {
    "Namespace hyperpod-training",
    "PersistentVolume fsx-hyperpod-training",
    "PersistentVolume fsx-kube-system",
    "PersistentVolumeClaim hyperpod-training/fsx",
    "PersistentVolumeClaim kube-system/fsx",
    "StorageClass fsx-lustre",
}
"""Objects that stay, because pods may use the claims; and the job that creates folders."""


@dataclass(frozen=True)
class State:
    """EKS cluster at one moment."""

    description: dict[str, Any]
    access: dict[str, Any]
    """Access entries, and service accounts with roles."""
    kubernetes: dict[str, Any]
    """Objects and releases."""


@dataclass(frozen=True)
class Platform:
    """The EKS cluster of another team."""

    vpc: str
    subnets: list[str]
    routes: str
    group: str

    def state(self, aws: LocalAws) -> State:
        return State(self.description(aws), self.access(aws), self.kubernetes(aws))

    def kubernetes(self, aws: LocalAws) -> dict[str, Any]:
        url = f"{aws.url}/moto-api/kubernetes/{ACCOUNT}/{REGION}/{EKS_NAME}"
        with urllib.request.urlopen(url) as answer:
            contents: dict[str, Any] = json.load(answer)
        return contents

    def description(self, aws: LocalAws) -> dict[str, Any]:
        """Descriptions of the cluster and its add-ons, the group of its interfaces, and its logs."""
        eks = aws.client("eks", REGION)
        name = {"clusterName": EKS_NAME}
        cluster = eks.describe_cluster(name=EKS_NAME)["cluster"]
        ec2 = aws.client("ec2", REGION)
        groups = ec2.describe_security_groups(GroupIds=[self.group])
        logs = aws.client("logs", REGION).describe_log_groups(
            logGroupNamePrefix=f"/aws/eks/{EKS_NAME}/"
        )["logGroups"]
        return {
            "cluster": {key: value for key, value in cluster.items() if key != "createdAt"},
            "addons": {
                addon: eks.describe_addon(addonName=addon, **name)["addon"]
                for addon in eks.list_addons(**name)["addons"]
            },
            "group": groups["SecurityGroups"],
            "logs": [(group["logGroupName"], group.get("retentionInDays")) for group in logs],
        }

    def access(self, aws: LocalAws) -> dict[str, Any]:
        """Access entries, and service accounts with roles."""
        eks = aws.client("eks", REGION)
        associations = eks.list_pod_identity_associations(clusterName=EKS_NAME)["associations"]
        return {
            "entries": eks.list_access_entries(clusterName=EKS_NAME)["accessEntries"],
            "accounts": {f"{item['namespace']}/{item['serviceAccount']}" for item in associations},
        }


@pytest.fixture(scope="module")
def platform(aws: LocalAws) -> Platform:
    """Create a VPC with an EKS cluster, with HyperPod's chart as its owner installed it."""
    ec2 = aws.client("ec2", REGION)
    vpc = ec2.create_vpc(CidrBlock=CIDR)["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZoneId=zone)["Subnet"]["SubnetId"]
        for zone, cidr in {"usw2-az4": "10.9.0.0/20", "usw2-az1": "10.9.16.0/20"}.items()
    ]
    (table,) = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])[
        "RouteTables"
    ]
    group = ec2.create_security_group(GroupName="lab-eks", Description="lab", VpcId=vpc)["GroupId"]
    rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    iam = aws.client("iam", REGION)
    service = {"Service": "eks.amazonaws.com"}
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": service}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    for role in ("lab-eks", TENANT):
        iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust)
    policy = "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"
    iam.attach_role_policy(RoleName="lab-eks", PolicyArn=policy)
    eks = aws.client("eks", REGION)
    eks.create_cluster(
        name=EKS_NAME,
        version="1.34",
        roleArn=f"arn:aws:iam::{ACCOUNT}:role/lab-eks",
        resourcesVpcConfig={
            "subnetIds": subnets,
            "securityGroupIds": [group],
            "endpointPublicAccess": False,
            "endpointPrivateAccess": True,
        },
        accessConfig={"authenticationMode": "API_AND_CONFIG_MAP"},
        logging={"clusterLogging": [{"types": ["audit"], "enabled": True}]},
    )
    for addon in ADDONS:
        eks.create_addon(clusterName=EKS_NAME, addonName=addon)
    url = f"{aws.url}/moto-api/kubernetes/{ACCOUNT}/{REGION}/{EKS_NAME}"
    release = {"namespace": "kube-system", "name": "dependencies"}
    release["chart"] = str(CHARTS / "hyperpod")
    headers = {"Content-Type": "application/json"}
    body = json.dumps(release).encode()
    urllib.request.urlopen(urllib.request.Request(url, body, headers)).close()
    return Platform(vpc, subnets, table["RouteTableId"], group)


@pytest.fixture(scope="module")
def checkout(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_checkout(tmp_path_factory.mktemp("tenant") / "checkout")
    document = yaml.safe_load((REPOSITORY / "clusters" / "eks.yaml").read_text())
    document |= {
        "name": NAME,
        "network": {
            "vpc": "existing",
            "vpc_id": platform.vpc,
            "cidr": CIDR,
            "private_subnets": [
                {
                    "subnet_id": platform.subnets[0],
                    "availability_zone_id": "usw2-az4",
                    "route_table_id": platform.routes,
                    "cidr": "10.9.0.0/20",
                }
            ],
            "security_group_ids": [platform.group],
        },
        "kubernetes": {
            "existing": EKS_NAME,
            "access": [{"principal_arn": f"arn:aws:iam::{ACCOUNT}:role/{TENANT}", "level": "edit"}],
        },
    }
    document["storage"]["lustre"]["removal"] = "destroy"
    document["storage"]["data_bucket"] = {"removal": "destroy"}
    (folder / FILE).write_text(yaml.safe_dump(document))
    return folder


@pytest.fixture(scope="module")
def before(aws: LocalAws, platform: Platform) -> State:
    return platform.state(aws)


@pytest.fixture(scope="module")
def deployed(aws: LocalAws, checkout: Path, before: State) -> Seen:
    command = (*TOOL, "deploy", "--cluster", FILE, "EksHyperPodStack", *NEVER_ASK)
    return see(aws, REGION, aws.run(*command, cwd=checkout))


@pytest.fixture(scope="module")
def added(aws: LocalAws, platform: Platform, deployed: Seen) -> State:
    return platform.state(aws)


@pytest.fixture(scope="module")
def torn_down(aws: LocalAws, checkout: Path, added: State) -> Seen:
    destroy = ("destroy", "--cluster", FILE, "EksHyperPodStack", "--force")
    aws.run(*TOOL, *destroy, cwd=checkout)
    teardown = ("-m", "tools.stacks.teardown", "--cluster", FILE, "--yes", NAME)
    return see(aws, REGION, aws.run(sys.executable, *teardown, cwd=checkout))


def test_the_rules_of_the_cdk_accept_the_file(checkout: Path) -> None:
    assert_accepted(load_cluster(checkout / FILE))


def test_hyperpods_nodes_join_the_existing_cluster(deployed: Seen) -> None:
    cluster = deployed.clusters[NAME]
    assert cluster["ClusterStatus"] == "InService"
    arn = f"arn:aws:eks:{REGION}:{ACCOUNT}:cluster/{EKS_NAME}"
    assert cluster["Orchestrator"]["Eks"]["ClusterArn"] == arn


def test_a_deployment_changes_nothing_that_exists(before: State, added: State) -> None:
    assert added.description == before.description
    assert added.kubernetes["releases"] == before.kubernetes["releases"]
    for key, found in before.kubernetes["objects"].items():
        assert added.kubernetes["objects"][key] == found


def test_a_deployment_adds_its_own_access_and_objects(before: State, added: State) -> None:
    assert f"arn:aws:iam::{ACCOUNT}:role/{TENANT}" in added.access["entries"]
    assert "aws-hyperpod/health-monitoring-agent" in added.access["accounts"]
    assert added.kubernetes["objects"].keys() - before.kubernetes["objects"].keys() >= LEFT


def test_destroy_and_teardown_leave_the_cluster_as_it_was(
    aws: LocalAws, torn_down: Seen, platform: Platform, before: State
) -> None:
    after = platform.state(aws)
    assert after.description == before.description
    assert after.access == before.access
    assert after.kubernetes["releases"] == before.kubernetes["releases"]
    for key, found in before.kubernetes["objects"].items():
        assert after.kubernetes["objects"][key] == found
    assert NAME not in torn_down.clusters
    assert not [name for name in torn_down.stacks if name.startswith(NAME)]


def test_teardown_names_the_objects_that_stay(
    aws: LocalAws, torn_down: Seen, platform: Platform, before: State
) -> None:
    left = platform.kubernetes(aws)["objects"].keys() - before.kubernetes["objects"].keys()
    assert {key for key in left if not key.startswith("Job ")} == LEFT
    for command in (
        "kubectl delete persistentvolumeclaim fsx --namespace kube-system",
        "kubectl delete persistentvolume fsx-kube-system fsx-hyperpod-training",
        "kubectl delete namespace hyperpod-training",
    ):
        assert command in torn_down.output
    assert f"--log-group-name /aws/eks/{EKS_NAME}" not in torn_down.output
