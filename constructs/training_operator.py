"""HyperPod's operator for training jobs."""

from __future__ import annotations

from config import addons
from config.eks_cluster import EksCluster
from constructs import Construct
from constructs.addon import addon
from constructs.eks_hyperpod_cluster import EksHyperPodCluster
from constructs.kubernetes_cluster import KubernetesCluster
from constructs.node_statements import Statement
from constructs.pod_role import PodRole


class TrainingOperator(Construct):
    """The add-on, and before it the identity of its pods, which it does not take as an argument."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: EksCluster,
        kubernetes: KubernetesCluster,
        hyperpod: EksHyperPodCluster,
    ) -> None:
        super().__init__(scope, construct_id)
        role = PodRole(
            self,
            "Role",
            kubernetes=kubernetes,
            namespace="aws-hyperpod",
            service_account="hp-training-operator-controller-manager",
            # What AmazonSageMakerHyperPodTrainingOperatorAccess allows, of this cluster alone.
            statements=[Statement("DescribeNodes", ["sagemaker:DescribeClusterNode"], [hyperpod.arn])],
        )
        operator = addon(
            self, "Addon", settings=settings, kubernetes=kubernetes, name=addons.TRAINING_OPERATOR
        )
        operator.node.add_dependency(role)
