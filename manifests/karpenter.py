"""Kubernetes objects by which HyperPod's Karpenter knows the groups that it scales."""

from config.eks_cluster import EksCluster, EksInstanceGroup, scaled_groups
from config.facts.instance_catalogue import instance_type
from manifests.chart_values import TYPE_LABEL
from manifests.objects import Object, kubernetes_object

CONSOLIDATE_AFTER = "10m"
"""Time that a node stays after its last pod, so that the next job of a series can use it."""
_GROUP = "karpenter.sagemaker.amazonaws.com"


def karpenter_objects(cluster: EksCluster) -> list[Object]:
    """A class and a pool for each group, so that each keeps its own limit, labels and taints.

    SageMaker developer guide, "Create a NodeClass" and "Create a NodePool".
    """
    return [
        made
        for group in scaled_groups(cluster)
        for made in (
            kubernetes_object(
                f"{_GROUP}/v1", "HyperpodNodeClass", group.name, spec={"instanceGroups": [group.name]}
            ),
            _node_pool(group),
        )
    ]


def _node_pool(group: EksInstanceGroup) -> Object:
    assert group.max_instances
    taints = [
        {"key": taint.key, "effect": taint.effect, **({"value": taint.value} if taint.value else {})}
        for taint in group.taints
    ]
    node = {
        "nodeClassRef": {"group": _GROUP, "kind": "HyperpodNodeClass", "name": group.name},
        # HyperPod replaces nodes for their faults, not for their age.
        "expireAfter": "Never",
        "requirements": [{"key": TYPE_LABEL, "operator": "In", "values": [group.instance_type]}],
        **({"taints": taints} if taints else {}),
    }
    spec = {
        # Karpenter counts nodes by their CPUs.
        "limits": {"cpu": str(group.max_instances * instance_type(group.instance_type).vcpus)},
        "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": CONSOLIDATE_AFTER},
        "template": {"metadata": {"labels": group.labels}, "spec": node},
    }
    return kubernetes_object("karpenter.sh/v1", "NodePool", group.name, spec=spec)
