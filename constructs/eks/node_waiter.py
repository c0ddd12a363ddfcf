"""Custom resources around the nodes: one waits for them, one deletes the network interfaces of their pods."""

from aws_cdk import Duration, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker

from config.eks_cluster import EksCluster, system_groups
from constructs import Construct
from constructs.custom_resource import ResourceProvider
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.policy.statement_role import Statement, unscoped

CNI = "aws-node"
"""The VPC CNI's pods, one on each node: ready when the node's network is."""
READY_WITHIN = Duration.minutes(10)
"""Counted from the state Running. The installer, which sends the request, has 15 minutes."""


class NodeWaiter(Construct):
    """Complete when the groups for Kubernetes's own pods have nodes that can run pods; deleted at once.

    HyperPod's state of a node, Running, is about the machine. Only Kubernetes reports that the node has
    joined and has a network. Without this check, every later add-on would fail after its own timeout.

    Everything that needs nodes depends on ``ready``.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        hyperpod: sagemaker.CfnCluster,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        settings = kubernetes.settings
        function = ResourceProvider(
            self,
            "Function",
            name="nodes_ready",
            description="Waits for nodes of a HyperPod cluster",
            statements=[
                Statement(
                    "ListNodes",
                    ["sagemaker:DescribeCluster", "sagemaker:ListClusterNodes"],
                    [hyperpod.attr_cluster_arn],
                )
            ],
            query_interval=Duration.seconds(30),
            log=log,
        )
        running = function.resource(
            self,
            "Resource",
            "Nodes",
            {
                "ClusterName": settings.name,
                # A larger group needs only its first node, unless the file has a minimum.
                "Groups": {group.name: group.min_instances or 1 for group in system_groups(settings)},
                # Before that the service refuses the objects of Karpenter that come next.
                "Autoscaling": settings.autoscaling == "karpenter",
            },
        )
        running.node.add_dependency(hyperpod)
        self.ready = eks.KubernetesObjectValue(
            self,
            "Ready",
            cluster=kubernetes.cluster,
            object_type="daemonset",
            object_name=CNI,
            object_namespace="kube-system",
            # Number of its pods that are ready; missing while there is none.
            json_path=".status.numberAvailable",
            timeout=READY_WITHIN,
        )
        self.ready.node.add_dependency(running)


class PodInterfaces(Construct):
    """Custom resource whose deletion deletes the network interfaces that pods have left behind.

    The nodes depend on ``resource`` and are gone by then. The network goes after it.
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
        function = ResourceProvider(
            self,
            "Function",
            name="pod_interfaces",
            description="Deletes network interfaces that pods of a HyperPod cluster had",
            statements=[
                unscoped("FindInterfaces", "ec2:DescribeNetworkInterfaces"),
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
        watched = {"ClusterName": settings.name, "SecurityGroupId": security_group.security_group_id}
        self.resource = function.resource(self, "Resource", "PodInterfaces", watched)
