"""What the nodes of one type may do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import Acknowledgment, Stack, Validations
from aws_cdk import aws_aps as aps
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_secretsmanager as secretsmanager

from constructs import Construct
from constructs.nag_finding import wildcard_finding

ARTIFACT_PREFIXES = ("lifecycle", "workloads")
"""Of the artifact bucket: what nodes read."""


@dataclass(frozen=True, kw_only=True)
class NodeResources:
    """What all nodes of a cluster use."""

    cluster_name: str
    vpc: ec2.IVpc
    subnets: Sequence[ec2.ISubnet]
    security_group: ec2.ISecurityGroup
    artifact_bucket_name: str
    repository: ecr.IRepository
    key: kms.IKey | None
    workspace: aps.CfnWorkspace | None


@dataclass(frozen=True)
class _Statement:
    sid: str
    actions: list[str]
    resources: list[str]
    conditions: Mapping[str, Mapping[str, str | list[str]]] | None = None
    why_wildcard: str = ""
    """Why a resource cannot be named, for the ones that hold a star."""


class InstanceRole(Construct):
    """The role of controller, login or worker nodes.

    The statements stand inside the role, so that what refers to the role also waits for them. They are those
    of the AWS managed AmazonSageMakerClusterInstanceRolePolicy and of HyperPod's documented VPC policy,
    narrowed to this cluster's log groups, bucket prefixes and network. ``grant_*`` would add actions that
    nodes have no use for. There is no access to the data bucket: data reach nodes through Lustre.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        resources: NodeResources,
        database_secret: secretsmanager.ISecret | None,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        statements = [
            *_service_statements(stack, resources.cluster_name),
            *_network_statements(stack, resources),
            *_artifact_statements(stack, resources),
        ]
        if resources.workspace:
            statements.append(_Statement("WriteMetrics", ["aps:RemoteWrite"], [resources.workspace.attr_arn]))
        if resources.key:
            # Scripts and code in S3, and the sessions that Session Manager encrypts.
            statements.append(_Statement("Decrypt", ["kms:Decrypt"], [resources.key.key_arn]))
        if database_secret:
            read = ["secretsmanager:GetSecretValue"]
            statements.append(_Statement("ReadDatabaseSecret", read, [database_secret.secret_arn]))
        self.role = iam.Role(
            self,
            "Role",
            description=f"{construct_id} of HyperPod cluster {resources.cluster_name}",
            # IfExists: SageMaker documents the key for jobs and Studio but not for clusters. Where it is
            # sent, no other account's cluster can use this role; where it is not, nodes still start.
            assumed_by=iam.ServicePrincipal(
                "sagemaker.amazonaws.com",
                conditions={"StringEqualsIfExists": {"aws:SourceAccount": stack.account}},
            ),
            inline_policies={
                "HyperPodNode": iam.PolicyDocument(
                    minimize=False,
                    statements=[
                        iam.PolicyStatement(
                            sid=statement.sid,
                            actions=statement.actions,
                            resources=statement.resources,
                            conditions=statement.conditions,
                        )
                        for statement in statements
                    ],
                )
            },
        )
        _acknowledge_wildcards(self.role, statements)


def _acknowledge_wildcards(role: iam.Role, statements: Sequence[_Statement]) -> None:
    """Give cdk-nag the reason of each resource with a star."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for statement in statements:
        for resource in statement.resources:
            if "*" in resource:
                assert statement.why_wildcard, f"{statement.sid}: no reason for {resource}"
                reasons[resource].append(f"{statement.sid}: {statement.why_wildcard}")
    for resource, why in reasons.items():
        finding = wildcard_finding(Stack.of(role), resource)
        Validations.of(role).acknowledge(Acknowledgment(id=finding, reason="; ".join(why)))


def _service_statements(stack: Stack, cluster_name: str) -> list[_Statement]:
    """Logs, metrics, Session Manager, and finding the file systems."""
    logs_arn = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}"
    log_groups = f"{logs_arn}:log-group:/aws/sagemaker/Clusters/{cluster_name}/*"
    unknown_id = "the last part is the cluster's id, which the service makes up later"
    return [
        _Statement("CreateLogGroups", ["logs:CreateLogGroup"], [log_groups], why_wildcard=unknown_id),
        _Statement(
            "WriteLogs",
            ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            [f"{log_groups}:log-stream:*"],
            why_wildcard=f"{unknown_id}; streams are named after nodes",
        ),
        _Statement(
            "PutClusterMetrics",
            ["cloudwatch:PutMetricData"],
            ["*"],
            {"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Clusters"}},
            "metrics have no ARN; the condition names the namespace",
        ),
        _Statement(
            "OpenSessions",
            [
                "ssmmessages:CreateControlChannel",
                "ssmmessages:CreateDataChannel",
                "ssmmessages:OpenControlChannel",
                "ssmmessages:OpenDataChannel",
            ],
            ["*"],
            why_wildcard="Session Manager's channels have no ARN",
        ),
        _Statement(
            "DescribeFileSystems",
            ["fsx:DescribeFileSystems"],
            ["*"],
            why_wildcard="FSx has no resource-level permissions for it",
        ),
    ]


def _network_statements(stack: Stack, resources: NodeResources) -> list[_Statement]:
    """The interfaces that HyperPod puts into the VPC for each node, in this cluster's subnets alone."""
    ec2_arn = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}"
    interfaces = f"{ec2_arn}:network-interface/*"
    subnets = [f"{ec2_arn}:subnet/{subnet.subnet_id}" for subnet in resources.subnets]
    vpc = f"{ec2_arn}:vpc/{resources.vpc.vpc_id}"
    unknown = "the service makes interfaces for nodes that come and go"
    return [
        _Statement(
            "CreateInterfaces",
            ["ec2:CreateNetworkInterface"],
            [interfaces, *subnets, f"{ec2_arn}:security-group/{resources.security_group.security_group_id}"],
            why_wildcard=f"{unknown}; subnets and security group are named",
        ),
        _Statement(
            "ManageInterfaces",
            [
                "ec2:CreateNetworkInterfacePermission",
                "ec2:DeleteNetworkInterface",
                "ec2:DeleteNetworkInterfacePermission",
            ],
            [interfaces],
            {"ArnEquals": {"ec2:Vpc": vpc}},
            f"{unknown}; the condition names the VPC",
        ),
        # Also authorised on the instance, which is the service's own and carries no VPC of ours.
        _Statement(
            "DetachInterfaces",
            ["ec2:DetachNetworkInterface"],
            [interfaces, f"arn:{stack.partition}:ec2:{stack.region}:*:instance/*"],
            {"ArnEqualsIfExists": {"ec2:Vpc": vpc}},
            f"{unknown}, on instances of its own account; the condition names the VPC",
        ),
        _Statement("TagInterfaces", ["ec2:CreateTags"], [interfaces], why_wildcard=unknown),
        _Statement(
            "DescribeNetwork",
            [
                "ec2:DescribeDhcpOptions",
                "ec2:DescribeNetworkInterfaces",
                "ec2:DescribeSecurityGroups",
                "ec2:DescribeSubnets",
                "ec2:DescribeVpcs",
            ],
            ["*"],
            why_wildcard="EC2 has no resource-level permissions for these",
        ),
    ]


def _artifact_statements(stack: Stack, resources: NodeResources) -> list[_Statement]:
    """Lifecycle scripts, workload code and the training image."""
    bucket = f"arn:{stack.partition}:s3:::{resources.artifact_bucket_name}"
    return [
        _Statement(
            "ListArtifacts",
            ["s3:ListBucket"],
            [bucket],
            {"StringLike": {"s3:prefix": [f"{prefix}/*" for prefix in ARTIFACT_PREFIXES]}},
        ),
        _Statement(
            "ReadArtifacts",
            ["s3:GetObject"],
            [f"{bucket}/{prefix}/*" for prefix in ARTIFACT_PREFIXES],
            why_wildcard="replaced nodes and rollbacks read earlier contents, each below a hash of its own",
        ),
        _Statement(
            "LogInToRegistry",
            ["ecr:GetAuthorizationToken"],
            ["*"],
            why_wildcard="ECR has no resource-level permissions for it",
        ),
        _Statement(
            "PullImages",
            ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            [resources.repository.repository_arn],
        ),
    ]
