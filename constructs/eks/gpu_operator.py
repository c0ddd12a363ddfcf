"""NVIDIA's GPU Operator."""

from pathlib import Path

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_s3_assets as s3_assets

from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from manifests.gpu_operator import CHART, gpu_operator_values
from manifests.objects import SYSTEM_NAMESPACE


class GpuOperator(Construct):
    """NVIDIA's GPU Operator, which divides GPUs into slices and offers the slices to pods.

    It is installed before there are nodes, and without waiting for its pods.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster, folder: Path
    ) -> None:
        super().__init__(scope, construct_id)
        eks.HelmChart(
            self,
            "Chart",
            cluster=kubernetes.cluster,
            chart_asset=s3_assets.Asset(self, "Files", path=str(folder)),
            release=CHART,
            namespace=SYSTEM_NAMESPACE,
            create_namespace=False,
            wait=False,
            values=gpu_operator_values(kubernetes.settings, kubernetes.image_repository),
        )
