"""What the nodes of one type may do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aws_cdk import Aws, Stack
from aws_cdk import aws_aps as aps
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager

from constructs import Construct


@dataclass(frozen=True, kw_only=True)
class NodeResources:
    """What all nodes of a cluster use."""

    cluster_name: str
    vpc: ec2.IVpc
    subnets: Sequence[ec2.ISubnet]
    security_group: ec2.ISecurityGroup
    artifact_bucket: s3.IBucket
    repository: ecr.IRepository
    key: kms.IKey | None
    workspace: aps.CfnWorkspace | None


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
        statements = [
            *_service_statements(Stack.of(self), resources.cluster_name),
            *_network_statements(Stack.of(self), resources),
            *_artifact_statements(resources),
        ]
        if resources.workspace:
            statements.append(
                _allow("WriteMetrics", ["aps:RemoteWrite"], [resources.workspace.attr_arn]),
            )
        if resources.key:
            # Scripts and code in S3, and the sessions that Session Manager encrypts.
            statements.append(_allow("Decrypt", ["kms:Decrypt"], [resources.key.key_arn]))
        if database_secret:
            statements.append(
                _allow("ReadDatabaseSecret", ["secretsmanager:GetSecretValue"], [database_secret.secret_arn])
            )
        self.role = iam.Role(
            self,
            "Role",
            description=f"{construct_id} of HyperPod cluster {resources.cluster_name}",
            # IfExists: SageMaker documents the key for jobs and Studio but not for clusters. Where it is
            # sent, no other account's cluster can use this role; where it is not, nodes still start.
            assumed_by=iam.ServicePrincipal(
                "sagemaker.amazonaws.com",
                conditions={"StringEqualsIfExists": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            ),
            inline_policies={"HyperPodNode": iam.PolicyDocument(statements=statements, minimize=False)},
        )


def _allow(
    sid: str,
    actions: list[str],
    resources: list[str],
    conditions: dict[str, dict[str, str | list[str]]] | None = None,
) -> iam.PolicyStatement:
    return iam.PolicyStatement(sid=sid, actions=actions, resources=resources, conditions=conditions)


def _service_statements(stack: Stack, cluster_name: str) -> list[iam.PolicyStatement]:
    """Logs, metrics, Session Manager, and finding the file systems."""
    logs_arn = f"arn:{Aws.PARTITION}:logs:{stack.region}:{Aws.ACCOUNT_ID}"
    log_groups = f"{logs_arn}:log-group:/aws/sagemaker/Clusters/{cluster_name}/*"
    return [
        _allow("CreateLogGroups", ["logs:CreateLogGroup"], [log_groups]),
        _allow(
            "WriteLogs",
            ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            [f"{log_groups}:log-stream:*"],
        ),
        _allow(
            "PutClusterMetrics",
            ["cloudwatch:PutMetricData"],
            ["*"],
            {"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Clusters"}},
        ),
        _allow(
            "OpenSessions",
            [
                "ssmmessages:CreateControlChannel",
                "ssmmessages:CreateDataChannel",
                "ssmmessages:OpenControlChannel",
                "ssmmessages:OpenDataChannel",
            ],
            ["*"],
        ),
        _allow("DescribeFileSystems", ["fsx:DescribeFileSystems"], ["*"]),
    ]


def _network_statements(stack: Stack, resources: NodeResources) -> list[iam.PolicyStatement]:
    """The interfaces that HyperPod puts into the VPC for each node, in this cluster's subnets alone."""
    ec2_arn = f"arn:{Aws.PARTITION}:ec2:{stack.region}:{Aws.ACCOUNT_ID}"
    interfaces = f"{ec2_arn}:network-interface/*"
    subnets = [f"{ec2_arn}:subnet/{subnet.subnet_id}" for subnet in resources.subnets]
    vpc = f"{ec2_arn}:vpc/{resources.vpc.vpc_id}"
    return [
        _allow(
            "CreateInterfaces",
            ["ec2:CreateNetworkInterface"],
            [interfaces, *subnets, f"{ec2_arn}:security-group/{resources.security_group.security_group_id}"],
        ),
        _allow(
            "ManageInterfaces",
            [
                "ec2:CreateNetworkInterfacePermission",
                "ec2:DeleteNetworkInterface",
                "ec2:DeleteNetworkInterfacePermission",
            ],
            [interfaces],
            {"ArnEquals": {"ec2:Vpc": vpc}},
        ),
        # Also authorised on the instance, which is the service's own and carries no VPC of ours.
        _allow(
            "DetachInterfaces",
            ["ec2:DetachNetworkInterface"],
            [interfaces, f"arn:{Aws.PARTITION}:ec2:{stack.region}:*:instance/*"],
            {"ArnEqualsIfExists": {"ec2:Vpc": vpc}},
        ),
        _allow("TagInterfaces", ["ec2:CreateTags"], [interfaces]),
        # EC2 has no resource-level permissions for these.
        _allow(
            "DescribeNetwork",
            [
                "ec2:DescribeDhcpOptions",
                "ec2:DescribeNetworkInterfaces",
                "ec2:DescribeSecurityGroups",
                "ec2:DescribeSubnets",
                "ec2:DescribeVpcs",
            ],
            ["*"],
        ),
    ]


def _artifact_statements(resources: NodeResources) -> list[iam.PolicyStatement]:
    """Lifecycle scripts, workload code and the training image."""
    prefixes = ["lifecycle/*", "workloads/*"]
    bucket = resources.artifact_bucket
    return [
        _allow(
            "ListArtifacts", ["s3:ListBucket"], [bucket.bucket_arn], {"StringLike": {"s3:prefix": prefixes}}
        ),
        _allow("ReadArtifacts", ["s3:GetObject"], [bucket.arn_for_objects(prefix) for prefix in prefixes]),
        _allow("LogInToRegistry", ["ecr:GetAuthorizationToken"], ["*"]),
        _allow(
            "PullImages",
            ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            [resources.repository.repository_arn],
        ),
    ]
