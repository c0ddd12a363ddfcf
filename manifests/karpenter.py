"""Kubernetes objects by which HyperPod's Karpenter knows the groups that it scales."""

from __future__ import annotations

from typing import Any

from config.eks_cluster import EksCluster, EksInstanceGroup, scaled_groups
from config.facts.instance_catalogue import instance_type

CONSOLIDATE_AFTER = "10m"
"""How long a node stays when its last pod has gone: the next job of a series finds it."""
_GROUP = "karpenter.sagemaker.amazonaws.com"


def karpenter_objects(cluster: EksCluster) -> list[dict[str, Any]]:
    """A class and a pool for each group, so that each keeps its own limit, labels and taints.

    SageMaker developer guide, "Create a NodeClass" and "Create a NodePool".
    """
    return [make(group) for group in scaled_groups(cluster) for make in (_node_class, _node_pool)]


def _node_class(group: EksInstanceGroup) -> dict[str, Any]:
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "HyperpodNodeClass",
        "metadata": {"name": group.name},
        "spec": {"instanceGroups": [group.name]},
    }


def _node_pool(group: EksInstanceGroup) -> dict[str, Any]:
    assert group.max_instances
    taints = [
        {"key": taint.key, "effect": taint.effect, **({"value": taint.value} if taint.value else {})}
        for taint in group.taints
    ]
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": group.name},
        "spec": {
            # Karpenter counts nodes by their CPUs.
            "limits": {"cpu": str(group.max_instances * instance_type(group.instance_type).vcpus)},
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": CONSOLIDATE_AFTER},
            "template": {
                "metadata": {"labels": group.labels},
                "spec": {
                    "nodeClassRef": {"group": _GROUP, "kind": "HyperpodNodeClass", "name": group.name},
                    # HyperPod replaces nodes for their faults, not for their age.
                    "expireAfter": "Never",
                    "requirements": [
                        {
                            "key": "node.kubernetes.io/instance-type",
                            "operator": "In",
                            "values": [group.instance_type],
                        }
                    ],
                    **({"taints": taints} if taints else {}),
                },
            },
        },
    }
