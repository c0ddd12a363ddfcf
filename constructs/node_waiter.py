"""What stands between the cluster and all that needs its nodes."""

from __future__ import annotations

from aws_cdk import CustomResource, Duration
from aws_cdk import aws_logs as logs

from config.eks_cluster import EksCluster
from config.system_groups import system_groups
from constructs import Construct
from constructs.eks_hyperpod_cluster import EksHyperPodCluster
from constructs.node_statements import Statement
from constructs.polled_resource import WAIT, PolledResource


class NodeWaiter(Construct):
    """In place when the groups for Kubernetes's own pods have nodes; deleted at once.

    What needs nodes depends on ``resource``.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: EksCluster,
        hyperpod: EksHyperPodCluster,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
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
        self.resource = CustomResource(
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
        self.resource.node.add_dependency(hyperpod)
