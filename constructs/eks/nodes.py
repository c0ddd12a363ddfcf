"""Parts of EKS that come before its nodes, and custom resources that wait for nodes and clean up after."""

from pathlib import Path
from typing import Any

from aws_cdk import CustomResource, Duration, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from aws_cdk import aws_sagemaker as sagemaker

from config.address_demand import FREE_POD_ADDRESSES, POD_ADDRESSES
from config.eks_cluster import EksCluster, system_groups
from config.facts import addons
from constructs import Construct
from constructs.custom_resource import ResourceProvider
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.nodes.node_roles import cluster_log_statements
from constructs.policy.statement_role import Statement, unscoped
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
CNI = "aws-node"
"""The VPC CNI's pods, one on each node: ready when the node's network is."""
READY_WITHIN = Duration.minutes(10)
"""Counted from the state Running. The installer, which sends the request, has 15 minutes."""


class NodePrerequisites(Construct):
    """Add-ons that are active without pods, and the policy that holds from the first pod on."""

    def __init__(self, scope: Construct, *, kubernetes: KubernetesCluster) -> None:
        super().__init__(scope, "WithoutNodes")
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


def hyperpod_chart(scope: Construct, kubernetes: KubernetesCluster, folder: Path) -> None:
    """Install HyperPod's own Helm chart: health monitoring, device plugins, job restart.

    It comes before there are nodes, as CreateCluster wants it, and so without waiting for its pods.
    """
    parent = Construct(scope, "Chart")
    # The agent's pods have no access to the node's credentials, and report faults to CloudWatch.
    stack, name = Stack.of(parent), kubernetes.settings.name
    agent = kubernetes.pod_role(
        parent, "HealthAgent", [AGENT_NAMESPACE], HEALTH_AGENT, cluster_log_statements(stack, name)
    )
    chart = eks.HelmChart(
        parent,
        "Chart",
        cluster=kubernetes.cluster,
        chart_asset=s3_assets.Asset(parent, "Files", path=str(folder)),
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
        applied = eks.KubernetesPatch(
            parent,
            patch_id,
            cluster=kubernetes.cluster,
            resource_name=resource,
            resource_namespace=namespace,
            apply_patch={"spec": {"template": {"spec": spec}}},
            # The empty values of the same types.
            restore_patch={"spec": {"template": {"spec": {name: type(spec[name])() for name in spec}}}},
        )
        applied.node.add_dependency(chart)


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


def nodes_ready(
    scope: Construct, kubernetes: KubernetesCluster, hyperpod: sagemaker.CfnCluster, log: logs.CfnLogGroup
) -> eks.KubernetesObjectValue:
    """Wait until the groups for Kubernetes's own pods have nodes that can run pods; deletion returns at once.

    HyperPod's state of a node, Running, is about the machine. Only Kubernetes reports that the node has
    joined and has a network. Without this check, every later add-on would fail after its own timeout.

    Everything that needs nodes depends on the returned object.
    """
    parent = Construct(scope, "NodeWaiter")
    settings = kubernetes.settings
    function = ResourceProvider(
        parent,
        "nodes_ready",
        description="Waits for nodes of a HyperPod cluster",
        statements=[
            Statement(
                "ListNodes",
                ["sagemaker:DescribeCluster", "sagemaker:ListClusterNodes"],
                [hyperpod.attr_cluster_arn],
            )
        ],
        seconds_between_calls=30,
        log=log,
    )
    running = function.resource(
        parent,
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
    ready = eks.KubernetesObjectValue(
        parent,
        "Ready",
        cluster=kubernetes.cluster,
        object_type="daemonset",
        object_name=CNI,
        object_namespace="kube-system",
        # Number of its pods that are ready; missing while there is none.
        json_path=".status.numberAvailable",
        timeout=READY_WITHIN,
    )
    ready.node.add_dependency(running)
    return ready


def pod_interfaces(
    scope: Construct, settings: EksCluster, security_group: ec2.ISecurityGroup, log: logs.CfnLogGroup
) -> CustomResource:
    """Create a custom resource whose deletion deletes the network interfaces that pods have left behind.

    The nodes depend on it and are gone by then. The network goes after it.
    """
    parent = Construct(scope, "PodInterfaces")
    stack = Stack.of(parent)
    interfaces = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}:network-interface/*"
    function = ResourceProvider(
        parent,
        "pod_interfaces",
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
        seconds_between_calls=15,
        log=log,
    )
    watched = {"ClusterName": settings.name, "SecurityGroupId": security_group.security_group_id}
    return function.resource(parent, "Resource", "PodInterfaces", watched)
