"""What is installed before there are nodes, which it lets join."""

from __future__ import annotations

from typing import Any

from config import addons
from config.address_demand import FREE_POD_ADDRESSES, POD_ADDRESSES
from config.eks_cluster import EksCluster
from constructs import Construct
from constructs.addon import addon
from constructs.kubernetes_cluster import KubernetesCluster
from constructs.manifest import manifest

METADATA_ADDRESS = "169.254.169.254/32"


class WithoutNodes(Construct):
    """Add-ons that are active without pods, and the policy that holds from the first pod on."""

    def __init__(
        self, scope: Construct, construct_id: str, *, settings: EksCluster, kubernetes: KubernetesCluster
    ) -> None:
        super().__init__(scope, construct_id)
        cni = addon(
            self,
            "VpcCni",
            settings=settings,
            kubernetes=kubernetes,
            name=addons.VPC_CNI,
            configuration={
                "enableNetworkPolicy": "true",
                "env": {"MINIMUM_IP_TARGET": str(POD_ADDRESSES), "WARM_IP_TARGET": str(FREE_POD_ADDRESSES)},
            },
        )
        addon(self, "KubeProxy", settings=settings, kubernetes=kubernetes, name=addons.KUBE_PROXY)
        addon(
            self, "PodIdentityAgent", settings=settings, kubernetes=kubernetes, name=addons.POD_IDENTITY_AGENT
        )
        policy = manifest(self, "MetadataPolicy", kubernetes=kubernetes, objects=[metadata_policy()])
        # Which brings the kind of object.
        policy.node.add_dependency(cni)


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
