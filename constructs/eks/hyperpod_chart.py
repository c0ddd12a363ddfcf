"""HyperPod's Helm chart."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_s3_assets as s3_assets

from config.eks_cluster import EksCluster
from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.pod_role import PodRole
from constructs.nodes.node_roles import cluster_log_statements
from manifests.chart_values import HEALTH_TOLERATION, chart_values, neuron_tolerations
from manifests.objects import SYSTEM_NAMESPACE

RELEASE = "hyperpod-dependencies"
OPERATOR = f"{RELEASE}-training-operators"
"""Deployment of Kubeflow's training operator; the chart derives the name from the release."""
OPERATOR_NAMESPACE = "kubeflow"
NEURON_PLUGIN = "neuron-device-plugin-daemonset"
"""DaemonSet of the chart's part neuron-device-plugin."""
NAMESPACE = SYSTEM_NAMESPACE
"""Namespace of the release (SageMaker developer guide, "Install packages using Helm").

Most parts of the chart have a different namespace.
"""
AGENT_NAMESPACE = "aws-hyperpod"
"""Namespace of the chart's health monitoring agent."""
HEALTH_AGENT = "health-monitoring-agent"
"""Service account of the chart's health monitoring agent (sagemaker-hyperpod-cli,
helm_chart/HyperPodHelmChart/charts/health-monitoring-agent)."""


@dataclass(frozen=True)
class _PodPatch:
    """Change of the pods of a part for which the chart has no values."""

    construct_id: str
    namespace: str
    resource: str
    pod_spec: dict[str, Any]


class HyperPodChart(Construct):
    """HyperPod's own Helm chart: health monitoring, device plugins, job restart.

    CreateCluster requires it, so it is installed before there are nodes, and without waiting for its pods.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster, folder: Path
    ) -> None:
        super().__init__(scope, construct_id)
        agent = agent_role(self, kubernetes)
        chart = eks.HelmChart(
            self,
            "Chart",
            cluster=kubernetes.cluster,
            chart_asset=s3_assets.Asset(self, "Files", path=str(folder)),
            release=RELEASE,
            namespace=NAMESPACE,
            create_namespace=False,
            wait=False,
            values=chart_values(kubernetes.settings),
        )
        # Pods read their credentials when they start.
        chart.node.add_dependency(agent)
        for patch in _patches(kubernetes.settings):
            # Restoring a field means setting the empty value of its type.
            empty = {name: type(value)() for name, value in patch.pod_spec.items()}
            applied = eks.KubernetesPatch(
                self,
                patch.construct_id,
                cluster=kubernetes.cluster,
                resource_name=patch.resource,
                resource_namespace=patch.namespace,
                apply_patch={"spec": {"template": {"spec": patch.pod_spec}}},
                restore_patch={"spec": {"template": {"spec": empty}}},
            )
            applied.node.add_dependency(chart)


def agent_role(scope: Construct, kubernetes: KubernetesCluster) -> PodRole:
    """Create the role of the chart's health monitoring agent.

    The agent reports faults to CloudWatch, and its pods have no access to the node's credentials.
    """
    return PodRole(
        scope,
        "HealthAgent",
        kubernetes=kubernetes,
        namespaces=[AGENT_NAMESPACE],
        service_account=HEALTH_AGENT,
        statements=cluster_log_statements(Stack.of(scope), kubernetes.settings.name),
    )


def _patches(settings: EksCluster) -> list[_PodPatch]:
    """Return the patches that the cluster needs; upgrades by Helm leave them in place."""
    patches: list[_PodPatch] = []
    if settings.training_operator == "kubeflow":
        # Without the toleration, the operator waits while all nodes are in deep health checks
        # (sagemaker-hyperpod-cli, pull request 449).
        patches.append(
            _PodPatch(
                "OperatorTolerations",
                namespace=OPERATOR_NAMESPACE,
                resource=f"deployment/{OPERATOR}",
                pod_spec={"tolerations": [HEALTH_TOLERATION]},
            )
        )
    tolerations = neuron_tolerations(settings)
    if tolerations:
        # The plugin reads the instance metadata, which it can reach only from the node's network.
        patches.append(
            _PodPatch(
                "NeuronPlugin",
                namespace=NAMESPACE,
                resource=f"daemonset/{NEURON_PLUGIN}",
                pod_spec={"hostNetwork": True, "tolerations": tolerations},
            )
        )
    return patches
