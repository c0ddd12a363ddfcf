"""What nodes leave behind in the VPC."""

from __future__ import annotations

from aws_cdk import CustomResource, Duration, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs

from config.eks_cluster import EksCluster
from constructs import Construct
from constructs.nodes.node_statements import Statement
from constructs.polled_resource import WAIT, PolledResource


class PodInterfaces(Construct):
    """Deletes, when it is deleted, the network interfaces that pods had and nobody has any more.

    The nodes depend on ``resource``, and so are gone by then; the network goes after it.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: EksCluster,
        security_group: ec2.ISecurityGroup,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        interfaces = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}:network-interface/*"
        function = PolledResource(
            self,
            "Function",
            name="pod_interfaces",
            description="Deletes network interfaces that pods of a HyperPod cluster had",
            statements=[
                Statement(
                    "FindInterfaces",
                    ["ec2:DescribeNetworkInterfaces"],
                    ["*"],
                    why_wildcard="EC2 has no resource-level permissions for it",
                ),
                Statement(
                    "DeletePodsInterfaces",
                    ["ec2:DeleteNetworkInterface"],
                    [interfaces],
                    {"StringEquals": {"aws:ResourceTag/cluster.k8s.amazonaws.com/name": settings.name}},
                    "the VPC CNI makes them for nodes that come and go; the condition names the cluster",
                ),
            ],
            query_interval=Duration.seconds(15),
            log=log,
        )
        self.resource = CustomResource(
            self,
            "Resource",
            resource_type="Custom::HyperPodPodInterfaces",
            service_token=function.service_token,
            properties={
                "ClusterName": settings.name,
                "SecurityGroupId": security_group.security_group_id,
                "TimeoutSeconds": WAIT.to_seconds(),
            },
        )
