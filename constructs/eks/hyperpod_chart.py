"""HyperPod's Helm chart."""

import hashlib
import json
from pathlib import Path
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_s3_assets as s3_assets

from config.eks_cluster import EksCluster
from config.resource_names import ResourceNames
from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.pod_role import PodRole
from constructs.nodes.node_roles import cluster_log_statements
from manifests.chart_patches import NAMESPACE, RELEASE, PodPatch, chart_patches
from manifests.chart_values import chart_values

AGENT_NAMESPACE = "aws-hyperpod"
"""Namespace of the chart's health monitoring agent."""
HEALTH_AGENT = "health-monitoring-agent"
"""Service account of the chart's health monitoring agent (sagemaker-hyperpod-cli,
helm_chart/HyperPodHelmChart/charts/health-monitoring-agent)."""
DIGEST = "hyperpod-esm2/release"
"""Annotation of patched objects with the digest of the release. An update of the release changes the patch,
so that CloudFormation applies it again."""


class HyperPodChart(Construct):
    """HyperPod's own Helm chart: health monitoring, device plugins, job restart.

    CreateCluster requires it, so it is installed before there are nodes, and without waiting for its pods.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster, folder: Path
    ) -> None:
        super().__init__(scope, construct_id)
        agent = agent_role(self, "HealthAgent", kubernetes=kubernetes)
        files = s3_assets.Asset(self, "Files", path=str(folder))
        chart = eks.HelmChart(
            self,
            "Chart",
            cluster=kubernetes.cluster,
            chart_asset=files,
            release=RELEASE,
            namespace=NAMESPACE,
            create_namespace=False,
            wait=False,
            values=chart_values(kubernetes.settings, kubernetes.image_repository),
        )
        # Pods read their credentials when they start.
        chart.node.add_dependency(agent)
        digest = _digest(kubernetes.settings, files)
        for patch in chart_patches(kubernetes.settings, kubernetes.image_repository):
            applied = eks.KubernetesPatch(
                self,
                patch.construct_id,
                cluster=kubernetes.cluster,
                resource_name=f"{patch.kind}/{patch.name}",
                resource_namespace=patch.namespace,
                apply_patch=_changes(patch, digest),
                # Restoring a field means setting the empty value of its type.
                restore_patch=_pods(
                    {name: type(value)() for name, value in patch.pod_spec.items()}
                ),
            )
            applied.node.add_dependency(chart)


def agent_role(scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster) -> PodRole:
    """Create the role of the chart's health monitoring agent.

    The agent reports faults to CloudWatch, and its pods have no access to the node's credentials.

    Args:
        scope: parent construct.
        construct_id: id within the scope.
        kubernetes: EKS cluster.
    """
    return PodRole(
        scope,
        construct_id,
        kubernetes=kubernetes,
        namespaces=[AGENT_NAMESPACE],
        service_account=HEALTH_AGENT,
        statements=cluster_log_statements(Stack.of(scope), kubernetes.settings.name),
    )


def _changes(patch: PodPatch, digest: str) -> dict[str, Any]:
    """Return the patch, with a digest of the release if it must be applied after each upgrade."""
    changes = _pods(patch.pod_spec)
    if patch.overrides_chart:
        changes["metadata"] = {"annotations": {DIGEST: digest}}
    return changes


def _pods(pod_spec: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"template": {"spec": pod_spec}}}


def _digest(settings: EksCluster, files: s3_assets.Asset) -> str:
    """Return a hash that changes with every upgrade of the release: with the chart's files or values."""
    # Values must have no tokens here, so the name stands for the address.
    values = chart_values(settings, ResourceNames(settings).image_repository)
    text = f"{files.asset_hash} {json.dumps(values, sort_keys=True)}"
    return hashlib.sha256(text.encode()).hexdigest()
