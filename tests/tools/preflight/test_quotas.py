import json
from pathlib import Path
from typing import Any

import pytest

from config.cluster import zone_ids
from config.slurm_cluster import AccountingDatabase
from config.storage import HomeFileSystem
from tests.tools.accounts import (
    STARTED,
    cluster_description,
    database_quotas,
    deployed_stacks,
    empty_account,
)
from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped, shipped_eks, with_group
from tests.tools.preflight.report import findings, problems
from tools.preflight import stack_quotas
from tools.preflight.account import MOST_ROLES
from tools.preflight.finding import Finding
from tools.preflight.read_only_aws import ReadOnlyAws

GOLDEN = Path(__file__).parents[2] / "golden"
SLURM = shipped("slurm")
P5 = shipped("slurm-p5")


def only(aws: AnsweringAws, cluster: Any, subject: str) -> Finding:
    (found,) = [finding for finding in findings(aws, cluster) if finding.subject == subject]
    return found


def with_other_cluster(aws: AnsweringAws, groups: list[dict[str, Any]]) -> None:
    """Add another cluster to the account."""
    arn = "arn:aws:sagemaker:us-west-2:123456789012:cluster/abc123def456"
    summary = {
        "ClusterName": "other",
        "ClusterArn": arn,
        "ClusterStatus": "InService",
        "CreationTime": STARTED,
    }
    aws.answer("sagemaker", "ListClusters", {"ClusterSummaries": [summary]})

    def describe(parameters: Parameters) -> dict[str, Any]:
        if parameters["ClusterName"] != "other":
            raise Refusal("ResourceNotFound")
        return cluster_description("other", groups)

    aws.answer("sagemaker", "DescribeCluster", describe)


def test_warns_that_efa_to_lustre_has_no_effect_yet() -> None:
    lustre = P5.storage.lustre.model_copy(update={"efa": True})
    cluster = P5.model_copy(update={"storage": P5.storage.model_copy(update={"lustre": lustre})})
    found = only(empty_account(cluster), cluster, "EFA to Lustre")
    assert found.level == "WARN" and "nodes mount Lustre over TCP" in found.message


def test_a_type_without_quota_names_the_request() -> None:
    cluster = with_group(SLURM, "workers", num_instances=5)
    found = only(empty_account(cluster), cluster, "quota ml.g5.8xlarge for cluster usage")
    assert found.level == "FAIL"
    assert found.message == "5 instance(s) needed, the quota is 4"
    expected = (
        "request 5 for 'ml.g5.8xlarge for cluster usage' in Service Quotas, Amazon SageMaker AI"
    )
    assert found.action == expected


@pytest.mark.parametrize(("in_use", "level"), [(2, "OK"), (3, "FAIL")])
def test_other_clusters_count(in_use: int, level: str) -> None:
    aws = empty_account(SLURM)
    # A growing group counts with its target size.
    group = {
        "InstanceGroupName": "g",
        "InstanceType": "ml.g5.8xlarge",
        "CurrentCount": 1,
        "TargetCount": in_use,
    }
    with_other_cluster(aws, [group])
    found = only(aws, SLURM, "quota ml.g5.8xlarge for cluster usage")
    assert found.level == level
    assert found.message == f"2 instance(s) needed, {in_use} in use, the quota is 4"


def test_spot_has_its_own_quotas() -> None:
    cluster = with_group(SLURM, "workers", capacity="spot", num_instances=3)
    subjects = {
        subject
        for level, subject, _ in problems(empty_account(cluster), cluster)
        if level == "FAIL"
    }
    assert subjects == {
        "quota ml.g5.8xlarge for cluster spot instance usage",
        "quota Total number of Spot instances allowed across SageMaker HyperPod clusters",
    }


def test_spot_instances_of_other_clusters_do_not_use_the_on_demand_quota() -> None:
    aws = empty_account(SLURM)
    group = {
        "InstanceGroupName": "g",
        "InstanceType": "ml.g5.8xlarge",
        "CurrentCount": 4,
        "TargetCount": 4,
    }
    with_other_cluster(aws, [group | {"CapacityRequirements": {"Spot": {}}}])
    assert only(aws, SLURM, "quota ml.g5.8xlarge for cluster usage").level == "OK"


def test_all_instances_are_limited_per_cluster_and_per_account() -> None:
    cluster = with_group(SLURM, "workers", num_instances=30)
    messages = {
        subject: message for _, subject, message in problems(empty_account(cluster), cluster)
    }
    per_cluster = "quota Maximum number instances allowed per SageMaker HyperPod cluster"
    in_account = "quota Total number of instances allowed across SageMaker HyperPod clusters"
    assert messages[per_cluster] == "31 instance(s) needed, the quota is 20"
    assert messages[in_account] == "31 instance(s) needed, the quota is 30"


def test_a_missing_quota_is_not_treated_as_sufficient() -> None:
    cluster = with_group(SLURM, "workers", instance_type="ml.g6.8xlarge")
    found = only(empty_account(cluster), cluster, "quota ml.g6.8xlarge for cluster usage")
    assert found.level == "WARN"
    assert "no quota 'ml.g6.8xlarge for cluster usage' in this account and region" in found.message


@pytest.mark.parametrize(("ebs_gib", "level"), [(1024, "OK"), (1025, "FAIL")])
def test_volumes_have_a_maximum_size(ebs_gib: int, level: str) -> None:
    cluster = with_group(SLURM, "workers", ebs_gib=ebs_gib)
    assert only(empty_account(cluster), cluster, "quota EBS volume of a node").level == level


def file_systems(*systems: dict[str, Any]) -> dict[str, Any]:
    return {
        "FileSystems": [
            {"FileSystemId": f"fs-0000000{i}"} | system for i, system in enumerate(systems)
        ]
    }


def lustre(
    capacity_gib: int, *, stack: str = "other", deployment: str = "PERSISTENT_2"
) -> dict[str, Any]:
    return {
        "FileSystemType": "LUSTRE",
        "StorageCapacity": capacity_gib,
        "LustreConfiguration": {"DeploymentType": deployment},
        "Tags": [{"Key": "aws:cloudformation:stack-name", "Value": stack}],
    }


@pytest.mark.parametrize(
    ("system", "level"),
    [
        (lustre(99600), "OK"),
        (lustre(100800), "FAIL"),
        (lustre(100800, stack="esm2-slurm-slurm-storage"), "OK"),
        (lustre(100800, deployment="SCRATCH_2"), "OK"),
    ],
)
def test_lustre_capacity_counts_other_persistent_file_systems(
    system: dict[str, Any], level: str
) -> None:
    aws = empty_account(SLURM)
    aws.answer("fsx", "DescribeFileSystems", file_systems(system))
    assert only(aws, SLURM, "quota Lustre Persistent_2 storage capacity").level == level


def test_homes_count_capacity_and_throughput() -> None:
    home = HomeFileSystem(capacity_gib=256, throughput_mbps=160)
    cluster = SLURM.model_copy(update={"storage": SLURM.storage.model_copy(update={"home": home})})
    aws = empty_account(cluster)
    other = {
        "FileSystemType": "OPENZFS",
        "StorageCapacity": 1024,
        "OpenZFSConfiguration": {"DeploymentType": "SINGLE_AZ_HA_2", "ThroughputCapacity": 10240},
    }
    aws.answer("fsx", "DescribeFileSystems", file_systems(other))
    assert only(aws, cluster, "quota OpenZFS SSD storage capacity").level == "OK"
    throughput = only(aws, cluster, "quota OpenZFS throughput capacity")
    assert (throughput.level, throughput.message) == (
        "FAIL",
        "160 MB/s needed, 10,240 in use, the quota is 10,240",
    )


def test_counts_file_systems() -> None:
    aws = empty_account(SLURM)
    aws.answer("fsx", "DescribeFileSystems", file_systems(lustre(1), lustre(1)))
    assert only(aws, SLURM, "quota Lustre Persistent_2 file systems").level == "OK"
    aws.answer(
        "service-quotas", "GetServiceQuota", {"Quota": {"QuotaCode": "L-FD6F2F22", "Value": 2.0}}
    )
    found = only(aws, SLURM, "quota Lustre Persistent_2 file systems")
    assert (found.level, found.message) == ("FAIL", "1 needed, 2 in use, the quota is 2")


def test_checks_rds_quotas_for_a_database() -> None:
    cluster = SLURM.model_copy(update={"accounting_database": AccountingDatabase(storage_gib=30)})
    aws = empty_account(cluster)
    quotas = {"DBInstances": 8, "AllocatedStorage": 36, "DBSubnetGroups": 7}
    aws.answer("rds", "DescribeAccountAttributes", database_quotas(quotas, used=7))
    assert problems(aws, cluster) == [
        (
            "FAIL",
            "quota Total storage for all DB instances",
            "30 GiB needed, 7 in use, the quota is 36",
        ),
        ("FAIL", "quota DB subnet groups", "1 needed, 7 in use, the quota is 7"),
        (
            "WARN",
            "quota Parameter groups",
            "no quota 'Parameter groups' in this account and region; 1 needed",
        ),
    ]
    own = {
        "TagList": [{"Key": "aws:cloudformation:stack-name", "Value": "esm2-slurm-slurm-storage"}]
    }
    aws.answer("rds", "DescribeDBInstances", {"DBInstances": [own]})
    assert problems(aws, cluster) == []


@pytest.mark.parametrize("deployed", [False, True])
def test_reports_a_region_without_room_for_a_network(deployed: bool) -> None:
    aws = empty_account(SLURM)
    aws.answer("ec2", "DescribeVpcs", {"Vpcs": [{"VpcId": f"vpc-{index}"} for index in range(5)]})
    aws.answer(
        "ec2", "DescribeAddresses", {"Addresses": [{"PublicIp": f"192.0.2.{i}"} for i in range(5)]}
    )
    endpoints = [{"VpcId": f"vpc-{index}", "VpcEndpointType": "Gateway"} for index in range(20)]
    aws.answer("ec2", "DescribeVpcEndpoints", {"VpcEndpoints": endpoints})
    if deployed:
        deployed_stacks(aws, {"esm2-slurm-slurm-network": "CREATE_COMPLETE"})
    subjects = {subject for level, subject, _ in problems(aws, SLURM) if level == "FAIL"}
    full = {"VPCs per Region", "EC2-VPC Elastic IPs", "Gateway VPC endpoints per Region"}
    assert subjects == (set() if deployed else {f"quota {name}" for name in full})


@pytest.mark.parametrize(("zone", "level"), [(0, "FAIL"), (1, "OK")])
def test_nat_gateways_are_counted_in_their_zone(zone: int, level: str) -> None:
    aws = empty_account(SLURM)

    def subnets(parameters: Parameters) -> dict[str, Any]:
        (asked,) = parameters["Filters"]
        here = asked["Values"] == [zone_ids(SLURM)[0]] and zone == 0
        return {"Subnets": [{"SubnetId": "subnet-0a"}] if here else []}

    gateways = [{"SubnetId": "subnet-0a", "State": "available"} for _ in range(5)]
    aws.answer("ec2", "DescribeSubnets", subnets)
    deleted = {"SubnetId": "subnet-0a", "State": "deleted"}
    aws.answer("ec2", "DescribeNatGateways", {"NatGateways": [*gateways, deleted]})
    assert only(aws, SLURM, "quota NAT gateways per Availability Zone").level == level


def test_an_account_specific_value_takes_precedence_over_the_default() -> None:
    aws = empty_account(SLURM)
    aws.answer("ec2", "DescribeVpcs", {"Vpcs": [{"VpcId": f"vpc-{index}"} for index in range(5)]})
    aws.answer(
        "service-quotas", "GetServiceQuota", {"Quota": {"QuotaCode": "L-F678F1CE", "Value": 50.0}}
    )
    assert (
        only(aws, SLURM, "quota VPCs per Region").message == "1 needed, 5 in use, the quota is 50"
    )


def test_a_p5_needs_one_interface_per_network_card() -> None:
    found = only(empty_account(P5), P5, "quota Network interfaces per Region")
    # 8 of 32, and three nodes with one each
    assert found.message == "259 needed, the quota is 5,000"


def test_pods_need_interfaces_on_eks() -> None:
    """For 28 pods an m5.2xlarge needs two interfaces and a g5.8xlarge one."""
    cluster = shipped_eks("eks")
    *_, found = stack_quotas.check_network_quotas(
        ReadOnlyAws(empty_account(cluster).session), cluster
    )
    assert found.message == "4 needed, the quota is 5,000"


@pytest.mark.parametrize(("used", "level"), [(975, "OK"), (976, "WARN")])
def test_warns_if_the_account_has_no_room_for_roles(used: int, level: str) -> None:
    aws = empty_account(SLURM)
    aws.answer("iam", "GetAccountSummary", {"SummaryMap": {"Roles": used, "RolesQuota": 1000}})
    found = only(aws, SLURM, "quota IAM roles")
    assert (found.level, found.message) == (
        level,
        f"up to 25 needed, {used} in use, the quota is 1,000",
    )


@pytest.mark.parametrize(
    ("scheduler", "folders"),
    [("slurm", ["slurm-p5", "every-option"]), ("eks", ["eks-p5", "every-eks-option"])],
)
def test_stacks_have_at_most_the_counted_roles(scheduler: str, folders: list[str]) -> None:
    files = [path for folder in folders for path in (GOLDEN / folder).glob("*.json")]
    resources = [
        one for path in files for one in json.loads(path.read_text())["Resources"].values()
    ]
    made = [one for one in resources if one["Type"] == "AWS::IAM::Role"]
    assert 10 < len(made) <= MOST_ROLES[scheduler]
