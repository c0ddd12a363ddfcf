"""Accounts as AWS would describe them, for the clusters of these tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from config.cluster import Cluster, zone_ids
from tests.tools.answering_aws import ACCOUNT, AnsweringAws, Parameters, Refusal

STARTED = datetime(2026, 11, 1, tzinfo=UTC)
APPLIED_QUOTAS = {
    "ml.m5.large for cluster usage": 4,
    "ml.m5.12xlarge for cluster usage": 4,
    "ml.m5.2xlarge for cluster usage": 4,
    "ml.m5.4xlarge for cluster usage": 4,
    "ml.g5.8xlarge for cluster usage": 4,
    "ml.g5.8xlarge for cluster spot instance usage": 2,
    "ml.p5.48xlarge for cluster usage": 8,
    "Maximum number instances allowed per SageMaker HyperPod cluster": 20,
}
DEFAULT_QUOTAS = {
    "ml.g5.8xlarge for cluster usage": 0,
    "Total number of instances allowed across SageMaker HyperPod clusters": 30,
    "Total number of Spot instances allowed across SageMaker HyperPod clusters": 2,
    "Maximum size of EBS volume in GB for a SageMaker HyperPod cluster instance": 1024,
    "Workspaces per region per account": 25,
    "Number of workspaces": 5,
}
QUOTAS_BY_CODE = {
    "L-FD6F2F22": 100.0,
    "L-8F1B9C74": 100800.0,
    "L-59D0763F": 100.0,
    "L-88479C21": 262144.0,
    "L-4EDE4065": 10240.0,
    "L-F678F1CE": 5.0,
    "L-A4707A72": 5.0,
    "L-0263D0A3": 5.0,
    "L-DF5E4CA3": 5000.0,
    "L-FE5A380F": 5.0,
    "L-1B52E74A": 20.0,
    "L-29B6F2EB": 50.0,
    "L-B683BCB0": 5.0,
    "L-AC46C40F": 60.0,
}
OTHER_ZONE = {"us-west-2": "usw2-az9", "us-east-1": "use1-az9"}
"""A zone of the region that no shipped file names."""


def empty_account(cluster: Cluster) -> AnsweringAws:
    """An account that is ready for its first cluster: bootstrapped, with quotas, and nothing deployed."""
    aws = AnsweringAws(cluster.region)
    identity = {
        "Account": ACCOUNT,
        "Arn": f"arn:aws:sts::{ACCOUNT}:assumed-role/Deployer/ada",
        "UserId": "A:ada",
    }
    aws.answer("sts", "GetCallerIdentity", identity)
    aws.answer(
        "ssm",
        "GetParameter",
        {
            "Parameter": {
                "Name": "/cdk-bootstrap/hnb659fds/version",
                "Type": "String",
                "Value": "27",
            }
        },
    )
    aws.answer("ssm", "DescribeDocument", Refusal("InvalidDocument"))
    aws.answer("iam", "GetAccountSummary", {"SummaryMap": {"Roles": 40, "RolesQuota": 1000}})
    aws.answer(
        "cloudformation", "DescribeStacks", Refusal("ValidationError", "Stack does not exist")
    )
    aws.answer("sagemaker", "ListClusters", {"ClusterSummaries": []})
    aws.answer("sagemaker", "DescribeCluster", Refusal("ResourceNotFound"))
    aws.answer("s3", "HeadBucket", Refusal("404", "Not Found", 404))
    aws.answer("ecr", "DescribeRepositories", Refusal("RepositoryNotFoundException"))
    aws.answer("logs", "DescribeLogGroups", {"logGroups": []})
    aws.answer("kms", "ListAliases", {"Aliases": []})
    aws.answer("amp", "ListWorkspaces", {"workspaces": []})
    aws.answer("grafana", "ListWorkspaces", {"workspaces": []})
    aws.answer("grafana", "ListVersions", {"grafanaVersions": ["9.4", "10.4", "12.4"]})
    aws.answer("sagemaker", "ListMlflowApps", {"Summaries": []})
    aws.answer("sagemaker", "ListMlflowTrackingServers", {"TrackingServerSummaries": []})
    aws.answer("fsx", "DescribeFileSystems", {"FileSystems": []})
    aws.answer("sagemaker", "DescribeTrainingPlan", training_plan())
    aws.answer("sagemaker", "ListDomains", {"Domains": []})
    aws.answer("sagemaker", "ListUserProfiles", {"UserProfiles": []})
    aws.answer("rds", "DescribeDBInstances", {"DBInstances": []})
    quotas = {
        "DBInstances": 40,
        "AllocatedStorage": 100000,
        "DBSubnetGroups": 50,
        "DBParameterGroups": 50,
    }
    aws.answer("rds", "DescribeAccountAttributes", database_quotas(quotas))
    aws.answer("rds", "DescribeOrderableDBInstanceOptions", orderable_databases(cluster.region))
    _answer_quotas(aws)
    _answer_network(aws, cluster.region, [*zone_ids(cluster), OTHER_ZONE[cluster.region]])
    return aws


def orderable_databases(region: str, zones: str = "abcdef") -> dict[str, Any]:
    """Return RDS's answer that it offers a class in the zones of a region."""
    named = [{"Name": f"{region}{letter}"} for letter in zones]
    return {"OrderableDBInstanceOptions": [{"AvailabilityZones": named}]}


def database_quotas(quotas: dict[str, int], used: int = 0) -> dict[str, Any]:
    """Return RDS' answer, with the same use of each quota."""
    return {
        "AccountQuotas": [
            {"AccountQuotaName": name, "Used": used, "Max": value} for name, value in quotas.items()
        ]
    }


def _answer_quotas(aws: AnsweringAws) -> None:
    def quotas(values: dict[str, int]) -> dict[str, Any]:
        return {
            "Quotas": [{"QuotaName": name, "Value": float(value)} for name, value in values.items()]
        }

    def by_code(parameters: Parameters) -> dict[str, Any]:
        if parameters["QuotaCode"] not in QUOTAS_BY_CODE:
            raise Refusal("NoSuchResourceException")
        return {
            "Quota": {
                "QuotaCode": parameters["QuotaCode"],
                "Value": QUOTAS_BY_CODE[parameters["QuotaCode"]],
            }
        }

    aws.answer("service-quotas", "ListServiceQuotas", quotas(APPLIED_QUOTAS))
    aws.answer("service-quotas", "ListAWSDefaultServiceQuotas", quotas(DEFAULT_QUOTAS))
    # None of these has been raised, so the account has no value of its own.
    aws.answer("service-quotas", "GetServiceQuota", Refusal("NoSuchResourceException"))
    aws.answer("service-quotas", "GetAWSDefaultServiceQuota", by_code)


def _answer_network(aws: AnsweringAws, region: str, zone_ids: list[str]) -> None:
    zones = [
        {
            "ZoneId": zone,
            "ZoneName": f"{region}{letter}",
            "State": "available",
            "RegionName": region,
        }
        for zone, letter in zip(zone_ids, "abcdefghij", strict=False)
    ]

    def offers(parameters: Parameters) -> dict[str, Any]:
        (types,) = parameters["Filters"]
        return {
            "InstanceTypeOfferings": [
                {"InstanceType": name, "LocationType": "availability-zone-id", "Location": zone}
                for name in types["Values"]
                for zone in zone_ids
            ]
        }

    def endpoint_services(parameters: Parameters) -> dict[str, Any]:
        (names,) = parameters["Filters"]
        return {
            "ServiceDetails": [
                {"ServiceName": name, "AvailabilityZoneIds": zone_ids} for name in names["Values"]
            ]
        }

    aws.answer("ec2", "DescribeVpcEndpointServices", endpoint_services)
    aws.answer(
        "ec2", "DescribeRegions", {"Regions": [{"RegionName": region, "OptInStatus": "opted-in"}]}
    )
    aws.answer("ec2", "DescribeAvailabilityZones", {"AvailabilityZones": zones})
    aws.answer("ec2", "DescribeInstanceTypeOfferings", offers)
    aws.answer("ec2", "DescribeVpcs", {"Vpcs": [{"VpcId": "vpc-0d00dd00", "IsDefault": True}]})
    aws.answer(
        "ec2",
        "DescribeInternetGateways",
        {"InternetGateways": [{"InternetGatewayId": "igw-0d00dd00"}]},
    )
    aws.answer("ec2", "DescribeAddresses", {"Addresses": []})
    aws.answer("ec2", "DescribeSubnets", {"Subnets": []})
    aws.answer("ec2", "DescribeNatGateways", {"NatGateways": []})
    aws.answer("ec2", "DescribeVpcEndpoints", {"VpcEndpoints": []})
    aws.answer("ec2", "DescribeNetworkInterfaces", {"NetworkInterfaces": []})


PLAN_ARN = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-plan/esm2-p5"


def training_plan(**changes: Any) -> dict[str, Any]:
    """The plan that clusters/slurm-p5.yaml names."""
    reserved = {
        "ReservedCapacityArn": f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:reserved-capacity/abc",
        "InstanceType": "ml.p5.48xlarge",
        "TotalInstanceCount": 8,
        "Status": "Active",
        "AvailabilityZoneId": "use1-az6",
    }
    return {
        "TrainingPlanArn": PLAN_ARN,
        "TrainingPlanName": "esm2-p5",
        "Status": "Active",
        "StartTime": STARTED,
        "EndTime": datetime.now(UTC) + timedelta(days=30),
        "TotalInstanceCount": 8,
        "AvailableInstanceCount": 8,
        "TargetResources": ["hyperpod-cluster"],
        "ReservedCapacitySummaries": [reserved],
    } | changes


def deployed_stacks(aws: AnsweringAws, statuses: dict[str, str]) -> None:
    """Let these stacks be there, and no others."""

    def describe(parameters: Parameters) -> dict[str, Any]:
        name = parameters["StackName"]
        if name not in statuses:
            raise Refusal("ValidationError", f"Stack with id {name} does not exist")
        stack = {"StackName": name, "CreationTime": STARTED, "StackStatus": statuses[name]}
        return {"Stacks": [stack]}

    aws.answer("cloudformation", "DescribeStacks", describe)


def cluster_description(
    name: str, groups: list[dict[str, Any]], *, status: str = "InService", region: str = "us-west-2"
) -> dict[str, Any]:
    """Return DescribeCluster's answer for a Slurm cluster."""
    return {
        "ClusterArn": f"arn:aws:sagemaker:{region}:{ACCOUNT}:cluster/abc123def456",
        "ClusterName": name,
        "ClusterStatus": status,
        "InstanceGroups": groups,
        "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Managed"}},
    }
