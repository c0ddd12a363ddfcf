"""Kubernetes objects that define the groups that HyperPod's Karpenter scales."""

from config.eks_cluster import EksCluster, EksInstanceGroup, Taint, scaled_groups
from manifests.chart_values import TYPE_LABEL
from manifests.objects import Object, kubernetes_object

CONSOLIDATE_AFTER = "10m"
"""Time for which a node stays after its last pod, so that the next job of a series can use it."""
_GROUP = "karpenter.sagemaker.amazonaws.com"
_NODE_CLASS = "HyperpodNodeClass"


def karpenter_objects(cluster: EksCluster) -> list[Object]:
    """Return a class and a pool for each group, so that each group keeps its own limit, labels and taints.

    Both follow "Create a NodeClass" and "Create a NodePool" in SageMaker's developer guide.
    """
    objects: list[Object] = []
    for group in scaled_groups(cluster):
        node_class = {"instanceGroups": [group.name]}
        objects.append(kubernetes_object(f"{_GROUP}/v1", _NODE_CLASS, group.name, spec=node_class))
        objects.append(_node_pool(group))
    return objects


def _node_pool(group: EksInstanceGroup) -> Object:
    assert group.max_instances
    node: Object = {
        "nodeClassRef": {"group": _GROUP, "kind": _NODE_CLASS, "name": group.name},
        # HyperPod replaces nodes when they are faulty, not when they are old.
        "expireAfter": "Never",
        "requirements": [{"key": TYPE_LABEL, "operator": "In", "values": group.types}],
    }
    if group.taints:
        node["taints"] = [_taint(taint) for taint in group.taints]
    spec = {
        # Karpenter limits CPUs instead of nodes. Of several types, the smallest keeps to the limit of nodes.
        "limits": {"cpu": str(group.max_instances * group.hardware.vcpus)},
        "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": CONSOLIDATE_AFTER},
        "template": {"metadata": {"labels": group.node_labels}, "spec": node},
    }
    return kubernetes_object("karpenter.sh/v1", "NodePool", group.name, spec=spec)


def _taint(taint: Taint) -> Object:
    """Return a taint; Karpenter accepts no empty value."""
    made = {"key": taint.key, "effect": taint.effect}
    if taint.value:
        made["value"] = taint.value
    return made
