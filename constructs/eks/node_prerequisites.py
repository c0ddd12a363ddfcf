"""Parts of EKS that must be there before nodes can join."""

from pathlib import Path
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_s3_assets as s3_assets

from config.address_demand import FREE_POD_ADDRESSES, POD_ADDRESSES
from config.facts import addons
from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.nodes.node_roles import cluster_log_statements
from manifests.chart_values import HEALTH_TOLERATION, chart_values, neuron_tolerations

METADATA_ADDRESS = "169.254.169.254/32"
RELEASE = "hyperpod-dependencies"
OPERATOR = f"{RELEASE}-training-operators"
"""Kubeflow's, as the chart names it after the release."""
NEURON_PLUGIN = "neuron-device-plugin-daemonset"
"""DaemonSet of the chart's part neuron-device-plugin."""
NAMESPACE = "kube-system"
"""Namespace of the release (SageMaker developer guide, "Install packages using Helm"). Most parts differ."""


AGENT_NAMESPACE, HEALTH_AGENT = "aws-hyperpod", "health-monitoring-agent"
"""Namespace and service account of the chart's health monitoring agent (sagemaker-hyperpod-cli,
helm_chart/HyperPodHelmChart/charts/health-monitoring-agent)."""


class NodePrerequisites(Construct):
    """Add-ons that are active without pods, and the policy that holds from the first pod on."""

    def __init__(self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster) -> None:
        super().__init__(scope, construct_id)
        cni = kubernetes.addon(
            self,
            "VpcCni",
            addons.VPC_CNI,
            {
                "enableNetworkPolicy": "true",
                "env": {"MINIMUM_IP_TARGET": str(POD_ADDRESSES), "WARM_IP_TARGET": str(FREE_POD_ADDRESSES)},
            },
        )
        kubernetes.addon(self, "KubeProxy", addons.KUBE_PROXY)
        kubernetes.addon(self, "PodIdentityAgent", addons.POD_IDENTITY_AGENT)
        if not kubernetes.settings.kubernetes.pod_metadata_access:
            # The CNI brings the kind of object.
            kubernetes.manifest(self, "MetadataPolicy", [metadata_policy()], after=[cni])


class HyperPodChart(Construct):
    """HyperPod's own Helm chart: health monitoring, device plugins, job restart.

    Installed before there are nodes, as CreateCluster wants it, and so without waiting for its pods.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster, folder: Path
    ) -> None:
        super().__init__(scope, construct_id)
        # The agent's pods have no access to the node's credentials, and report faults to CloudWatch.
        stack, name = Stack.of(self), kubernetes.settings.name
        agent = kubernetes.pod_role(
            self, "HealthAgent", [AGENT_NAMESPACE], HEALTH_AGENT, cluster_log_statements(stack, name)
        )
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
        # Pods read their credentials at their start.
        chart.node.add_dependency(agent)
        # The chart has no values for these. Helm's upgrades leave patches in place.
        patch: dict[str, Any]
        patches: dict[str, tuple[str, str, dict[str, Any]]] = {}
        if kubernetes.settings.training_operator == "kubeflow":
            # Without it the operator waits while all nodes are in deep health checks (sagemaker-hyperpod-cli,
            # pull request 449).
            patch = {"tolerations": [HEALTH_TOLERATION]}
            patches["OperatorTolerations"] = "kubeflow", f"deployment/{OPERATOR}", patch
        if neuron := neuron_tolerations(kubernetes.settings):
            # In the node's network, because it may read the instance metadata, which pods do not reach.
            patch = {"hostNetwork": True, "tolerations": neuron}
            patches["NeuronPlugin"] = NAMESPACE, f"daemonset/{NEURON_PLUGIN}", patch
        for patch_id, (namespace, resource, spec) in patches.items():
            made = eks.KubernetesPatch(
                self,
                patch_id,
                cluster=kubernetes.cluster,
                resource_name=resource,
                resource_namespace=namespace,
                apply_patch={"spec": {"template": {"spec": spec}}},
                # The empty values of the same types.
                restore_patch={"spec": {"template": {"spec": {name: type(spec[name])() for name in spec}}}},
            )
            made.node.add_dependency(chart)


def metadata_policy() -> dict[str, Any]:
    """A policy of the VPC CNI for all namespaces, which no policy of a namespace can lift.

    HyperPod's API has no option for the hop limit of instance metadata. The credentials that EKS Pod Identity
    gives pods come from another address, 169.254.170.23. Pods in the node's own network, as the CNI's, are
    not subject to policies.
    """
    return {
        "apiVersion": "networking.k8s.aws/v1alpha1",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "deny-instance-metadata"},
        "spec": {
            "tier": "Admin",
            "priority": 10,
            "subject": {"namespaces": {"matchLabels": {}}},
            "egress": [
                {
                    "name": "deny-instance-metadata",
                    "action": "Deny",
                    "to": [{"networks": [METADATA_ADDRESS]}],
                }
            ],
        },
    }
