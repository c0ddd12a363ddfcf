"""What keeps pods from the credentials of the nodes that they run on."""

from __future__ import annotations

from typing import Any

METADATA_ADDRESS = "169.254.169.254/32"


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
