"""What stands between the cluster and all that needs its nodes."""

from __future__ import annotations

from aws_cdk import CustomResource, Duration
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_logs as logs

from config.eks_cluster import system_groups
from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.nodes.eks_hyperpod_cluster import EksHyperPodCluster
from constructs.nodes.node_statements import Statement
from constructs.polled_resource import WAIT, PolledResource

CNI = "aws-node"
"""The VPC CNI's pods, one on each node: ready when the node's network is."""
READY_WITHIN = Duration.minutes(10)
"""From Running on. The installer, which asks, has 15 minutes."""


class NodeWaiter(Construct):
    """In place when the groups for Kubernetes's own pods have nodes that pods can run on; deleted at once.

    HyperPod's word for a node, Running, is about the machine. That it has joined and has a network is asked
    of Kubernetes: without, every add-on that comes next would fail for itself after its own time-out.

    What needs nodes depends on ``ready``.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        hyperpod: EksHyperPodCluster,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        settings = kubernetes.settings
        function = PolledResource(
            self,
            "Function",
            name="nodes_ready",
            description="Waits for nodes of a HyperPod cluster",
            statements=[
                Statement(
                    "ListNodes", ["sagemaker:DescribeCluster", "sagemaker:ListClusterNodes"], [hyperpod.arn]
                )
            ],
            query_interval=Duration.seconds(30),
            log=log,
        )
        running = CustomResource(
            self,
            "Resource",
            resource_type="Custom::HyperPodNodes",
            service_token=function.service_token,
            properties={
                "ClusterName": settings.name,
                # A group of more waits for the first node alone, unless the file wants more at least.
                "Groups": {group.name: group.min_instances or 1 for group in system_groups(settings)},
                # The objects of Karpenter that come next are refused before.
                "Autoscaling": settings.autoscaling == "karpenter",
                "TimeoutSeconds": WAIT.to_seconds(),
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
            # Of its pods those that are ready; missing as long as there is none.
            json_path=".status.numberAvailable",
            timeout=READY_WITHIN,
        )
        self.ready.node.add_dependency(running)
