"""What nodes of EKS may do beside what every node may: give pods addresses, images and identities."""

from __future__ import annotations

from aws_cdk import Stack

from constructs.node_statements import NodeResources, Statement


def eks_node_statements(stack: Stack, resources: NodeResources, cluster_arn: str) -> list[Statement]:
    """HyperPod's documented role for EKS ("IAM role for SageMaker HyperPod"), narrowed to this cluster.

    Amazon's VPC CNI works with the node's role. Alarms, by which updates can roll back, are left out.
    """
    ec2_arn = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}"
    interfaces = f"{ec2_arn}:network-interface/*"
    instances = f"arn:{stack.partition}:ec2:{stack.region}:*:instance/*"
    vpc = {"ArnEqualsIfExists": {"ec2:Vpc": f"{ec2_arn}:vpc/{resources.vpc.vpc_id}"}}
    group = f"{ec2_arn}:security-group/{resources.security_group.security_group_id}"
    return [
        Statement(
            "GivePodsAddresses",
            ["ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"],
            [interfaces],
            vpc,
            "nodes and their interfaces come and go; the condition names the VPC",
        ),
        Statement(
            "AttachInterfaces",
            ["ec2:AttachNetworkInterface", "ec2:ModifyNetworkInterfaceAttribute"],
            [interfaces, instances, group],
            vpc,
            "interfaces come and go, on instances of the service's account; the condition names the VPC",
        ),
        Statement(
            "DescribeInstances",
            ["ec2:DescribeInstances", "ec2:DescribeInstanceTypes", "ec2:DescribeTags"],
            ["*"],
            why_wildcard="EC2 has no resource-level permissions for these",
        ),
        Statement(
            "PullImagesOfAddons",
            ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            [f"arn:{stack.partition}:ecr:*:*:repository/*"],
            why_wildcard="add-ons and HyperPod's agents lie in registries of AWS, whose accounts differ",
        ),
        Statement("GivePodsIdentities", ["eks-auth:AssumeRoleForPodIdentity"], [cluster_arn]),
    ]
