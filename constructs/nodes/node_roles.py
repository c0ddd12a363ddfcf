"""Roles of nodes and of Karpenter, and their statements: HyperPod, Session Manager, jobs."""

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from config.cluster import Cluster
from config.resource_names import artifact_bucket
from constructs import Construct
from constructs.policy.findings import MANAGED, acknowledge
from constructs.policy.statement_role import (
    WRITE_LOGS,
    Statement,
    sagemaker_principal,
    statement_role,
    unscoped,
)
from constructs.vpc.network import Network

LIFECYCLE_PREFIX, WORKLOAD_PREFIX, MIRROR_PREFIX = "lifecycle", "workloads", "downloads"
"""Prefixes of the artifact bucket: setup scripts, training code, and downloads for nodes without internet."""
MANAGED_POLICY = "AmazonSageMakerClusterInstanceRolePolicy"
_NETWORK_PARTS = ("DhcpOptions", "NetworkInterfaces", "SecurityGroups", "Subnets", "Vpcs")
_PULL = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")


def node_role(scope: Construct, construct_id: str, cluster: Cluster, statements: list[Statement]) -> iam.Role:
    role = statement_role(
        Construct(scope, construct_id),
        "Role",
        description=f"{construct_id} of HyperPod cluster {cluster.name}",
        assumed_by=sagemaker_principal(Stack.of(scope)),
        policy_name="HyperPodNode",
        statements=statements,
    )
    if cluster.iam.node_policy == "managed":
        role.add_managed_policy(iam.ManagedPolicy.from_aws_managed_policy_name(MANAGED_POLICY))
        finding = f"AwsSolutions-IAM4[Policy::{MANAGED}{MANAGED_POLICY}]"
        acknowledge(role, {finding: "iam.node_policy is the cluster file's choice"})
    return role


def autoscaling_role(scope: Construct, construct_id: str, *, key: kms.IKey | None) -> iam.Role:
    """Create the role with which HyperPod's Karpenter adds and removes nodes.

    After "Create an IAM role for HyperPod autoscaling with Karpenter" in SageMaker's developer guide. The
    cluster's id is not known before the cluster, which names the role: the statement is for the account's
    clusters in the region.
    """
    stack = Stack.of(scope)
    statements = [
        Statement(
            "ScaleClusters",
            ["sagemaker:BatchAddClusterNodes", "sagemaker:BatchDeleteClusterNodes"],
            [f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}:cluster/*"],
            why="the cluster's id is the service's, and follows the role",
        )
    ]
    if key:
        statements += volume_key_statements(stack, key.key_arn)
    return statement_role(
        scope,
        construct_id,
        description="HyperPod's Karpenter",
        assumed_by=sagemaker_principal(stack, "hyperpod.sagemaker"),
        policy_name="Autoscaling",
        statements=statements,
    )


def node_statements(
    stack: Stack,
    cluster: Cluster,
    *,
    network: Network,
    prefixes: Sequence[str],
    repository: ecr.IRepository,
    key: kms.IKey | None,
) -> list[Statement]:
    """Return the permissions of every node; it reads ``prefixes`` of the artifact bucket.

    These are the statements of the AWS managed AmazonSageMakerClusterInstanceRolePolicy and of HyperPod's
    documented VPC policy, narrowed to this cluster's log groups, bucket prefixes and network. ``grant_*``
    would add actions that nodes have no use for. The data bucket is left out: data come through Lustre.
    """
    bucket = f"arn:{stack.partition}:s3:::{artifact_bucket(cluster, stack.account)}"
    statements = [
        *cluster_log_statements(stack, cluster.name),
        unscoped(
            "OpenSessions",
            *(
                f"ssmmessages:{verb}{kind}Channel"
                for verb in ("Create", "Open")
                for kind in ("Control", "Data")
            ),
            why="Session Manager's channels have no ARN",
        ),
        describe_file_systems(),
        *network_statements(
            stack,
            vpc_id=network.vpc.vpc_id,
            # All, not those in use: nodes leave a zone after their role has learned of the next one.
            subnet_ids=[subnet.subnet_id for subnet in network.private_subnets],
            security_group_id=network.security_group.security_group_id,
        ),
        Statement(
            "ListArtifacts",
            ["s3:ListBucket"],
            [bucket],
            {"StringLikeIfExists": {"s3:prefix": [f"{prefix}/*" for prefix in prefixes]}},
        ),
        # As in AWS's own policy, in case HyperPod lists with another prefix or checks that the bucket exists.
        # A list shows hashes and names of files.
        Statement("ListArtifactBucket", ["s3:ListBucket"], [bucket]),
        Statement(
            "ReadArtifacts",
            ["s3:GetObject"],
            [f"{bucket}/{prefix}/*" for prefix in prefixes],
            why="replaced nodes and rollbacks read earlier contents, each below a hash of its own",
        ),
        *registry_statements(repository.repository_arn, sid="PullImages"),
    ]
    if key:
        statements += key_statements(stack, key.key_arn)
    return statements


def key_statements(stack: Stack, key_arn: str, *, volumes: str = "Volumes") -> list[Statement]:
    """Allow reading of files and sessions under a key, and volumes under it.

    HyperPod's page on customer managed keys asks for the volumes. S3 decrypts scripts and code, and Session
    Manager encrypts its sessions.
    """
    decrypt = Statement("Decrypt", ["kms:Decrypt"], [key_arn])
    return [decrypt, *volume_key_statements(stack, key_arn, volumes=volumes)]


def volume_key_statements(stack: Stack, key_arn: str, *, volumes: str = "Volumes") -> list[Statement]:
    """Allow SageMaker to encrypt volumes with a key.

    The service passes no encryption context that a condition could ask for.
    """
    via = {"kms:ViaService": f"sagemaker.{stack.region}.amazonaws.com"}
    return [
        Statement(
            f"Grant{volumes}TheKey",
            ["kms:CreateGrant"],
            [key_arn],
            {"Bool": {"kms:GrantIsForAWSResource": "true"}, "StringEquals": via},
        ),
        Statement(f"DescribeKeyOf{volumes}", ["kms:DescribeKey"], [key_arn], {"StringEquals": via}),
    ]


def registry_statements(repository_arn: str, *, sid: str) -> list[Statement]:
    """Allow pulls from one repository of ECR; ``sid`` is the name of the statement for it."""
    return [
        unscoped("LogInToRegistry", "ecr:GetAuthorizationToken"),
        Statement(sid, [*_PULL], [repository_arn]),
    ]


def metrics_statement(namespace: str, *, sid: str = "PutMetrics") -> Statement:
    """Allow metrics of one namespace of CloudWatch."""
    return Statement(
        sid,
        ["cloudwatch:PutMetricData"],
        ["*"],
        {"StringEquals": {"cloudwatch:namespace": namespace}},
        "metrics have no ARN; the condition names the namespace",
    )


def describe_file_systems(sid: str = "DescribeFileSystems") -> Statement:
    return unscoped(sid, "fsx:DescribeFileSystems")


def cluster_log_statements(stack: Stack, cluster_name: str) -> list[Statement]:
    """Allow log groups and metrics of the cluster, as nodes and HyperPod's agents write them."""
    logs_arn = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}"
    log_groups = f"{logs_arn}:log-group:/aws/sagemaker/Clusters/{cluster_name}/*"
    unknown_id = "the last part is the cluster's id, which the service makes up later"
    return [
        Statement("CreateLogGroups", ["logs:CreateLogGroup"], [log_groups], why=unknown_id),
        Statement(
            "WriteLogs",
            WRITE_LOGS,
            [f"{log_groups}:log-stream:*"],
            why=f"{unknown_id}; streams are named after nodes",
        ),
        metrics_statement("/aws/sagemaker/Clusters", sid="PutClusterMetrics"),
    ]


def network_statements(
    stack: Stack, *, vpc_id: str, subnet_ids: Sequence[str], security_group_id: str
) -> list[Statement]:
    """Allow the interfaces that SageMaker creates in the VPC for each instance, in these subnets alone."""
    ec2_arn = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}"
    interfaces = f"{ec2_arn}:network-interface/*"
    subnets = [f"{ec2_arn}:subnet/{subnet_id}" for subnet_id in subnet_ids]
    # IfExists: EC2 sends the VPC of an interface. It sends none for a permission, which has an id of its own,
    # for an instance, which is the service's, or for a resource that is tagged when it is created.
    in_vpc = {"ArnEqualsIfExists": {"ec2:Vpc": f"{ec2_arn}:vpc/{vpc_id}"}}
    condition = "the condition names the VPC"
    unknown = "the service makes interfaces for nodes that come and go"
    return [
        Statement(
            "CreateInterfaces",
            ["ec2:CreateNetworkInterface"],
            [interfaces, *subnets, f"{ec2_arn}:security-group/{security_group_id}"],
            why=f"{unknown}; subnets and security group are named",
        ),
        Statement(
            "ManageInterfaces",
            ["ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface"],
            [interfaces],
            {"ArnEqualsIfExists": {"ec2:Subnet": subnets}},
            f"{unknown}; the condition names the subnets",
        ),
        Statement(
            "DeleteInterfacePermissions",
            ["ec2:DeleteNetworkInterfacePermission"],
            ["*"],
            in_vpc,
            f"permissions have ids but no ARN; {condition}",
        ),
        Statement(
            "DetachInterfaces",
            ["ec2:DetachNetworkInterface"],
            [interfaces, f"arn:{stack.partition}:ec2:{stack.region}:*:instance/*"],
            in_vpc,
            f"{unknown}, on instances of its own account; {condition}",
        ),
        Statement("TagInterfaces", ["ec2:CreateTags"], [interfaces], in_vpc, f"{unknown}; {condition}"),
        unscoped("DescribeNetwork", *(f"ec2:Describe{kind}" for kind in _NETWORK_PARTS)),
    ]


def eks_node_statements(stack: Stack, network: Network, cluster_arn: str) -> list[Statement]:
    """HyperPod's documented role for EKS ("IAM role for SageMaker HyperPod"), narrowed to this cluster.

    Amazon's VPC CNI works with the node's role. Alarms, by which updates can roll back, are left out.
    """
    ec2_arn = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}"
    interfaces = f"{ec2_arn}:network-interface/*"
    instances = f"arn:{stack.partition}:ec2:{stack.region}:*:instance/*"
    in_vpc = {"ArnEqualsIfExists": {"ec2:Vpc": f"{ec2_arn}:vpc/{network.vpc.vpc_id}"}}
    group = f"{ec2_arn}:security-group/{network.security_group.security_group_id}"
    return [
        Statement(
            "GivePodsAddresses",
            ["ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"],
            [interfaces],
            in_vpc,
            "nodes and their interfaces come and go; the condition names the VPC",
        ),
        Statement(
            "AttachInterfaces",
            ["ec2:AttachNetworkInterface", "ec2:ModifyNetworkInterfaceAttribute"],
            [interfaces, instances, group],
            in_vpc,
            "interfaces come and go, on instances of the service's account; the condition names the VPC",
        ),
        unscoped(
            "DescribeInstances", "ec2:DescribeInstances", "ec2:DescribeInstanceTypes", "ec2:DescribeTags"
        ),
        Statement(
            "PullImagesOfAddons",
            [*_PULL],
            [f"arn:{stack.partition}:ecr:*:*:repository/*"],
            why="add-ons and HyperPod's agents lie in registries of AWS, whose accounts differ",
        ),
        Statement("GivePodsIdentities", ["eks-auth:AssumeRoleForPodIdentity"], [cluster_arn]),
    ]
