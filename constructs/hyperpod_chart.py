"""HyperPod's own Helm chart: health monitoring, device plugins, job restart."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_s3_assets as s3_assets

from config.chart_values import chart_values
from config.eks_cluster import EksCluster
from constructs import Construct
from constructs.kubernetes_cluster import KubernetesCluster

RELEASE = "hyperpod-dependencies"
NAMESPACE = "kube-system"
"""Of the release (SageMaker developer guide, "Install packages using Helm"); most parts name their own."""


class HyperPodChart(Construct):
    """Installed before there are nodes, as CreateCluster wants it, and so without waiting for its pods."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: EksCluster,
        kubernetes: KubernetesCluster,
        folder: Path,
    ) -> None:
        super().__init__(scope, construct_id)
        eks.HelmChart(
            self,
            "Chart",
            cluster=kubernetes.cluster,
            chart_asset=s3_assets.Asset(self, "Files", path=str(folder)),
            release=RELEASE,
            namespace=NAMESPACE,
            create_namespace=False,
            wait=False,
            values=chart_values(settings),
        )
