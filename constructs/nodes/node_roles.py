"""Roles of nodes and of Karpenter, and their statements: HyperPod, Session Manager, jobs."""

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from config.cluster import Cluster, InstanceGroup
from config.resource_names import artifact_bucket
from constructs import Construct
from constructs.policy.existing_role import existing_role
from constructs.policy.findings import MANAGED, acknowledge
from constructs.policy.statement_role import (
    WRITE_LOGS,
    Statement,
    sagemaker_principal,
    statement_role,
    unscoped,
)
from constructs.vpc.network import Network

LIFECYCLE_PREFIX = "lifecycle"
"""Prefix of the setup scripts in the artifact bucket."""
WORKLOAD_PREFIX = "workloads"
"""Prefix of the training code in the artifact bucket."""
MIRROR_PREFIX = "downloads"
"""Prefix of downloads for nodes without internet in the artifact bucket."""
MANAGED_POLICY = "AmazonSageMakerClusterInstanceRolePolicy"
_NETWORK_PARTS = ("DhcpOptions", "NetworkInterfaces", "SecurityGroups", "Subnets", "Vpcs")
_PULL = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")


class NodeRole(Construct):
    """Role of nodes, with AWS's managed policy if the cluster file requests it."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: Cluster,
        statements: Sequence[Statement],
    ) -> None:
        super().__init__(scope, construct_id)
        self.role = statement_role(
            self,
            "Role",
            description=f"{construct_id} of HyperPod cluster {cluster.name}",
            assumed_by=sagemaker_principal(Stack.of(self)),
            policy_name="HyperPodNode",
            statements=statements,
        )
        if cluster.iam.node_policy == "managed":
            self.role.add_managed_policy(
                iam.ManagedPolicy.from_aws_managed_policy_name(MANAGED_POLICY)
            )
            finding = f"AwsSolutions-IAM4[Policy::{MANAGED}{MANAGED_POLICY}]"
            acknowledge(self.role, {finding: "the cluster file requests it by iam.node_policy"})


def existing_node_role(
    scope: Construct, construct_id: str, *, group: InstanceGroup
) -> iam.IRole | None:
    """Return the existing role of a group's nodes; None if the stack creates it."""
    if group.execution_role is None:
        return None
    return existing_role(scope, construct_id, role=group.execution_role)


def autoscaling_role(scope: Construct, construct_id: str, *, key: kms.IKey | None) -> iam.Role:
    """Create the role with which HyperPod's Karpenter adds and removes nodes.

    The statements are those of "Create an IAM role for HyperPod autoscaling with Karpenter" in SageMaker's
    developer guide. They cover all clusters of the account in the region: the cluster's id does not exist
    before the cluster, and the cluster needs the role.
    """
    stack = Stack.of(scope)
    statements = [
        Statement(
            "ScaleClusters",
            ["sagemaker:BatchAddClusterNodes", "sagemaker:BatchDeleteClusterNodes"],
            [f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}:cluster/*"],
            why="the service chooses the cluster's id after the role is created",
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
    """Return the permissions of every node.

    These are the statements of the AWS managed AmazonSageMakerClusterInstanceRolePolicy and of HyperPod's
    documented VPC policy, narrowed to this cluster's log groups, bucket prefixes and network. ``grant_*``
    would add actions that nodes do not need. Nodes read data through Lustre, so they have no permission for
    the data bucket.

    Args:
        stack: stack of the role.
        cluster: cluster file.
        network: network of the nodes.
        prefixes: prefixes of the artifact bucket that the nodes read.
        repository: repository of the images that the nodes pull.
        key: key of the cluster, if it has one.
    """
    bucket = f"arn:{stack.partition}:s3:::{artifact_bucket(cluster, stack.account)}"
    statements = [
        *cluster_log_statements(stack, cluster.name),
        unscoped(
            "OpenSessions",
            "ssmmessages:CreateControlChannel",
            "ssmmessages:CreateDataChannel",
            "ssmmessages:OpenControlChannel",
            "ssmmessages:OpenDataChannel",
            why="Session Manager's channels have no ARN",
        ),
        describe_file_systems(),
        *network_statements(
            stack,
            owner=network.owner,
            vpc_id=network.vpc.vpc_id,
            # All subnets, not only those in use: when a group moves to another zone, the role changes before
            # the old nodes are gone.
            subnet_ids=[subnet.subnet_id for subnet in network.private_subnets],
            security_group_arns=network.security_group_arns,
        ),
        # Any prefix, as in AWS's own policy, in case HyperPod lists another one or checks that the bucket
        # exists. A list shows only hashes and file names.
        Statement("ListArtifactBucket", ["s3:ListBucket"], [bucket]),
        Statement(
            "ReadArtifacts",
            ["s3:GetObject"],
            [f"{bucket}/{prefix}/*" for prefix in prefixes],
            why="replaced nodes and rollbacks read earlier versions, each below its own hash",
        ),
        *registry_statements(repository.repository_arn, sid="PullImages"),
    ]
    if any(
        group.rolling_update and group.rolling_update.rollback_alarms
        for group in cluster.instance_groups
    ):
        alarms = f"arn:{stack.partition}:cloudwatch:{stack.region}:{stack.account}:alarm:*"
        why = "the service reads alarms that users name, and lists them in its own way"
        statements.append(
            Statement("ReadRollbackAlarms", ["cloudwatch:DescribeAlarms"], [alarms], why=why)
        )
    if key:
        statements += key_statements(stack, key.key_arn)
    return statements


def mounted_bucket_statements(bucket_arn: str, key: kms.IKey | None) -> list[Statement]:
    """Allow what Mountpoint for Amazon S3 needs to read files and write new ones.

    The statements are those of its documentation, "Configuring IAM permissions", without DeleteObject.
    """
    statements = [
        Statement("ListDataBucket", ["s3:ListBucket"], [bucket_arn]),
        Statement(
            "ReadAndWriteData",
            ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"],
            [f"{bucket_arn}/*"],
            why="people choose the names of their files",
        ),
    ]
    if key:
        statements.append(Statement("EncryptData", ["kms:GenerateDataKey"], [key.key_arn]))
    return statements


def key_statements(stack: Stack, key_arn: str, *, volumes: str = "Volumes") -> list[Statement]:
    """Allow the use of a key for files, sessions and volumes.

    S3 decrypts scripts and code, and Session Manager encrypts its sessions. HyperPod's page on customer
    managed keys requires the statements for volumes.
    """
    decrypt = Statement("Decrypt", ["kms:Decrypt"], [key_arn])
    return [decrypt, *volume_key_statements(stack, key_arn, volumes=volumes)]


def volume_key_statements(
    stack: Stack, key_arn: str, *, volumes: str = "Volumes"
) -> list[Statement]:
    """Allow SageMaker to encrypt volumes with a key.

    The service sends no encryption context that a condition could require.
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
    """Allow pulls from one repository of ECR; ``sid`` is the id of the repository's statement."""
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
        why="metrics have no ARN; the condition names the namespace",
    )


def describe_file_systems(sid: str = "DescribeFileSystems") -> Statement:
    return unscoped(sid, "fsx:DescribeFileSystems")


def cluster_log_statements(stack: Stack, cluster_name: str) -> list[Statement]:
    """Allow nodes and HyperPod's agents to write the cluster's log groups and metrics."""
    logs_arn = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}"
    log_groups = f"{logs_arn}:log-group:/aws/sagemaker/Clusters/{cluster_name}/*"
    unknown_id = "the last part is the cluster's id, which the service chooses later"
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
    stack: Stack,
    *,
    owner: str,
    vpc_id: str,
    subnet_ids: Sequence[str],
    security_group_arns: Sequence[str],
) -> list[Statement]:
    """Allow the interfaces that SageMaker creates in the VPC for each instance, in these subnets alone.

    Args:
        stack: stack of the role.
        owner: account of VPC and subnets in their ARNs.
        vpc_id: VPC.
        subnet_ids: subnets of the interfaces.
        security_group_arns: security groups of the interfaces.
    """
    ec2_arn = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}"
    interfaces = f"{ec2_arn}:network-interface/*"
    owners_arn = f"arn:{stack.partition}:ec2:{stack.region}:{owner}"
    subnets = [f"{owners_arn}:subnet/{subnet_id}" for subnet_id in subnet_ids]
    # IfExists, because EC2 sends the VPC only for interfaces. It sends none for permissions, instances of the
    # service, or resources that are tagged at their creation.
    in_vpc = {"ArnEqualsIfExists": {"ec2:Vpc": f"{owners_arn}:vpc/{vpc_id}"}}
    condition = "the condition names the VPC"
    unknown = "the service creates interfaces for each new node"
    return [
        Statement(
            "CreateInterfaces",
            ["ec2:CreateNetworkInterface"],
            [interfaces, *subnets, *security_group_arns],
            why=f"{unknown}; subnets and security group are named",
        ),
        Statement(
            "ManageInterfaces",
            ["ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface"],
            [interfaces],
            {"ArnEqualsIfExists": {"ec2:Subnet": subnets}},
            why=f"{unknown}; the condition names the subnets",
        ),
        Statement(
            "DeleteInterfacePermissions",
            ["ec2:DeleteNetworkInterfacePermission"],
            ["*"],
            in_vpc,
            why=f"permissions have ids but no ARN; {condition}",
        ),
        Statement(
            "DetachInterfaces",
            ["ec2:DetachNetworkInterface"],
            [interfaces, f"arn:{stack.partition}:ec2:{stack.region}:*:instance/*"],
            in_vpc,
            why=f"{unknown}, on instances of its own account; {condition}",
        ),
        Statement(
            "TagInterfaces", ["ec2:CreateTags"], [interfaces], in_vpc, why=f"{unknown}; {condition}"
        ),
        unscoped("DescribeNetwork", *(f"ec2:Describe{kind}" for kind in _NETWORK_PARTS)),
    ]


def eks_node_statements(stack: Stack, network: Network, cluster_arn: str) -> list[Statement]:
    """Return the additional permissions of nodes on EKS.

    These are the statements of HyperPod's documented role for EKS ("IAM role for SageMaker HyperPod"),
    narrowed to this cluster. They include those of the VPC CNI, which uses the node's role.
    """
    ec2_arn = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}"
    interfaces = f"{ec2_arn}:network-interface/*"
    instances = f"arn:{stack.partition}:ec2:{stack.region}:*:instance/*"
    vpc_arn = f"arn:{stack.partition}:ec2:{stack.region}:{network.owner}:vpc/{network.vpc.vpc_id}"
    in_vpc = {"ArnEqualsIfExists": {"ec2:Vpc": vpc_arn}}
    return [
        Statement(
            "GivePodsAddresses",
            ["ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"],
            [interfaces],
            in_vpc,
            why="interfaces are created with their nodes; the condition names the VPC",
        ),
        Statement(
            "AttachInterfaces",
            ["ec2:AttachNetworkInterface", "ec2:ModifyNetworkInterfaceAttribute"],
            [interfaces, instances, *network.security_group_arns],
            in_vpc,
            why="interfaces are created with their nodes, on instances of the service's account; "
            "the condition names the VPC",
        ),
        # VPC CNIs from September 2026 on attach interfaces through HyperPod (aws/amazon-vpc-cni-k8s, pull
        # request 3874).
        Statement(
            "AttachInterfacesToNodes",
            ["sagemaker:AttachClusterNodeNetworkInterface"],
            [f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}:cluster/*"],
            why="the service chooses the cluster's id after the role is created",
        ),
        unscoped(
            "DescribeInstances",
            "ec2:DescribeInstances",
            "ec2:DescribeInstanceTypes",
            "ec2:DescribeTags",
        ),
        Statement(
            "PullImagesOfAddons",
            [*_PULL],
            [f"arn:{stack.partition}:ecr:*:*:repository/*"],
            why="images of add-ons and of HyperPod's agents are in registries of several AWS accounts",
        ),
        Statement("GivePodsIdentities", ["eks-auth:AssumeRoleForPodIdentity"], [cluster_arn]),
    ]
