"""HyperPod's own Helm chart: health monitoring, device plugins, job restart."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_s3_assets as s3_assets

from config.chart_values import HEALTH_TOLERATION, chart_values
from config.eks_cluster import EksCluster
from constructs import Construct
from constructs.kubernetes_cluster import KubernetesCluster

RELEASE = "hyperpod-dependencies"
OPERATOR = f"{RELEASE}-training-operators"
"""Kubeflow's, as the chart names it after the release."""
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
        chart = eks.HelmChart(
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
        if settings.training_operator == "kubeflow":
            # The chart has no value for it (sagemaker-hyperpod-cli, pull request 449). Without it the
            # operator waits while all nodes are in deep health checks. Helm's upgrades leave it in place.
            tolerations = eks.KubernetesPatch(
                self,
                "OperatorTolerations",
                cluster=kubernetes.cluster,
                resource_name=f"deployment/{OPERATOR}",
                resource_namespace="kubeflow",
                apply_patch={"spec": {"template": {"spec": {"tolerations": [HEALTH_TOLERATION]}}}},
                restore_patch={"spec": {"template": {"spec": {"tolerations": []}}}},
            )
            tolerations.node.add_dependency(chart)
