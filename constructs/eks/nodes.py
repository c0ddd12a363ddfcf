"""Parts of EKS that precede its nodes, and custom resources that wait for nodes and clean up after them."""

from typing import Any

from aws_cdk import Duration, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker

from config.address_demand import FREE_POD_ADDRESSES, POD_ADDRESSES
from config.eks_cluster import EksCluster, system_groups
from config.facts import addons
from constructs import Construct
from constructs.custom_resource import ResourceProvider
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.policy.statement_role import Statement, unscoped
from manifests.objects import SYSTEM_NAMESPACE

METADATA_ADDRESS = "169.254.169.254/32"
"""Address of the instance metadata."""
CNI = "aws-node"
"""DaemonSet of the VPC CNI. Its pod on a node is ready when the node's network is."""
READY_WITHIN = Duration.minutes(10)
"""Time that a node has to join after its state is Running. The installer, which sends the request, has 15
minutes."""


class NodePrerequisites(Construct):
    """Add-ons that are active without pods, and the network policy that applies from the first pod on."""

    def __init__(
        self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster
    ) -> None:
        super().__init__(scope, construct_id)
        cni = kubernetes.addon(
            self,
            "VpcCni",
            addons.VPC_CNI,
            {
                "enableNetworkPolicy": "true",
                "env": {
                    "MINIMUM_IP_TARGET": str(POD_ADDRESSES),
                    "WARM_IP_TARGET": str(FREE_POD_ADDRESSES),
                },
            },
        )
        kubernetes.addon(self, "KubeProxy", addons.KUBE_PROXY)
        kubernetes.addon(self, "PodIdentityAgent", addons.POD_IDENTITY_AGENT)
        if not (kubernetes.settings.kubernetes.pod_metadata_access or kubernetes.is_existing):
            # The CNI defines the kind of object. In an existing cluster, the policy would also apply to the
            # pods of others; only the firewall rules of the nodes apply there.
            kubernetes.manifest(self, "MetadataPolicy", [metadata_policy()], after=[cni])


def metadata_policy() -> dict[str, Any]:
    """Return a policy of the VPC CNI for all namespaces, which policies of a namespace cannot override.

    HyperPod's API has no option for the hop limit of instance metadata. EKS Pod Identity gives pods their
    credentials from another address, 169.254.170.23. Pods in the node's own network, such as the CNI's, are
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


class NodeWaiter(Construct):
    """Wait until the groups for Kubernetes's own pods have nodes that can run pods; deletion does nothing.

    HyperPod's state of a node, Running, is about the machine. Only Kubernetes reports that the node has
    joined and has a network. Without this check, every later add-on would fail after its own timeout. In an
    existing EKS cluster, which may have other nodes, the check of Kubernetes proves only that it answers.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        hyperpod: sagemaker.CfnCluster,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        settings = kubernetes.settings
        list_nodes = Statement(
            "ListNodes",
            ["sagemaker:DescribeCluster", "sagemaker:ListClusterNodes"],
            [hyperpod.attr_cluster_arn],
        )
        function = ResourceProvider(
            self,
            "Function",
            name="nodes_ready",
            description="Waits for nodes of a HyperPod cluster",
            statements=[list_nodes],
            seconds_between_calls=30,
            log=log,
        )
        running = function.resource(
            self,
            "Resource",
            "Nodes",
            {
                "ClusterName": settings.name,
                # A larger group needs only its first node, unless the file has a minimum.
                "Groups": {
                    group.name: group.min_instances or 1 for group in system_groups(settings)
                },
                # Until autoscaling is on, the service refuses Karpenter's objects, which are created later.
                "Autoscaling": settings.autoscaling == "karpenter",
            },
        )
        running.node.add_dependency(hyperpod)
        self.ready = eks.KubernetesObjectValue(
            self,
            "Ready",
            cluster=kubernetes.cluster,
            object_type="daemonset",
            object_name=CNI,
            object_namespace=SYSTEM_NAMESPACE,
            # Number of the DaemonSet's pods that are ready; the field is missing at first.
            json_path=".status.numberAvailable",
            timeout=READY_WITHIN,
        )
        """Resource that all resources that need nodes depend on."""
        self.ready.node.add_dependency(running, *kubernetes.installer_access)


class PodInterfaces(Construct):
    """Custom resource that deletes the network interfaces of pods when it is deleted itself.

    Nodes depend on it, so they are deleted before. The network is deleted later.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: EksCluster,
        security_group: ec2.ISecurityGroup,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        interfaces = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}:network-interface/*"
        delete_interfaces = Statement(
            "DeletePodsInterfaces",
            ["ec2:DeleteNetworkInterface"],
            [interfaces],
            {"StringEquals": {"aws:ResourceTag/cluster.k8s.amazonaws.com/name": settings.name}},
            why="the VPC CNI creates interfaces for each new node; the condition names the cluster",
        )
        function = ResourceProvider(
            self,
            "Function",
            name="pod_interfaces",
            description="Deletes network interfaces that pods of a HyperPod cluster had",
            statements=[
                unscoped("FindInterfaces", "ec2:DescribeNetworkInterfaces"),
                delete_interfaces,
            ],
            seconds_between_calls=15,
            log=log,
        )
        watched = {
            "ClusterName": settings.name,
            "SecurityGroupId": security_group.security_group_id,
        }
        self.resource = function.resource(self, "Resource", "PodInterfaces", watched)
