"""Values of HyperPod's Helm chart, which enable or disable its parts.

Device plugins run only on nodes that have the devices.
"""

from typing import Any

from config.eks_cluster import EksCluster, has_slices
from config.facts.instance_catalogue import instance_type
from manifests.public_images import needed_images, takes_copies

TYPE_LABEL = "node.kubernetes.io/instance-type"
HEALTH_TOLERATION = {
    "key": "sagemaker.amazonaws.com/node-health-status",
    "operator": "Equal",
    "value": "Unschedulable",
    "effect": "NoSchedule",
}
"""Toleration of HyperPod's taint, so that nodes report their devices during checks and until replaced."""
DISABLED_PARTS = (
    "cert-manager",
    "storage",
    "mlflow",
    "mpi-operator",
    "inferenceOperators",
    "gpu-operator",
    "hyperpod-ray-endpoint-operator",
    "cluster-role-and-bindings",
    "namespaced-role-and-bindings",
    "team-role-and-bindings",
)
"""Parts that are add-ons of EKS here, that trainings do not need, or that are releases of their own
(``gpu_operator``)."""
_GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def chart_values(cluster: EksCluster, repository: str) -> dict[str, Any]:
    """Return the values of the chart in ``manifests/charts.json``; docs/charts.md describes its parts.

    The chart's lists of instance types are replaced by those of this cluster. The chart's list for the EFA
    plugin contains types without EFA, on which the plugin fails repeatedly. It also lacks newer types, which
    would have no EFA (sagemaker-hyperpod-cli, issue 367 and pull request 380).

    Args:
        cluster: cluster of the chart.
        repository: address of the cluster's image repository, from which nodes may pull the chart's images.
    """
    types = {name: instance_type(name) for group in cluster.instance_groups for name in group.types}
    gpu = [name for name, found in types.items() if found.num_gpus]
    neuron = [name for name, found in types.items() if found.num_neuron_devices]
    efa = [name for name, found in types.items() if found.num_efa]
    on_gpu_nodes = {"key": TYPE_LABEL, "operator": "In", "values": gpu}
    disabled = {name: {"enabled": False} for name in DISABLED_PARTS}
    values: dict[str, Any] = {
        "trainingOperators": {"enabled": cluster.training_operator == "kubeflow"},
        "health-monitoring-agent": {"enabled": True, "region": cluster.region},
        "deep-health-check": {"enabled": True},
        "job-auto-restart": {"enabled": True},
        "hyperpod-patching": {"enabled": True},
        "nvidia-device-plugin": {
            # The GPU Operator has a plugin of its own, for slices and whole GPUs.
            "devicePlugin": {"enabled": bool(gpu) and not has_slices(cluster)},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [on_gpu_nodes]}]
                    }
                }
            },
            "tolerations": [HEALTH_TOLERATION, _GPU_TOLERATION, *_tolerations(cluster, gpu)],
        },
        "neuron-device-plugin": {"devicePlugin": {"enabled": bool(neuron)}},
        "aws-efa-k8s-device-plugin": {
            "devicePlugin": {"enabled": bool(efa)},
            "supportedInstanceLabels": {"keys": [TYPE_LABEL], "values": efa},
            "tolerations": [HEALTH_TOLERATION, _GPU_TOLERATION, *_tolerations(cluster, efa)],
        },
        **disabled,
    }
    if takes_copies(cluster):
        for image in needed_images(cluster):
            if image.chart_part is not None:
                part = values.setdefault(image.chart_part, {})
                part["image"] = {"repository": repository, "tag": image.pinned_tag}
    return values


def neuron_tolerations(cluster: EksCluster) -> list[dict[str, str]]:
    """Return the tolerations of Neuron's plugin, for which the chart has no values.

    They include the chart's own, because a patch replaces the whole list. A cluster without Neuron devices
    has none.
    """
    group_types = [name for group in cluster.instance_groups for name in group.types]
    types = [name for name in group_types if instance_type(name).num_neuron_devices]
    if not types:
        return []
    return [
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"},
        HEALTH_TOLERATION,
        *_tolerations(cluster, types),
    ]


def _tolerations(cluster: EksCluster, types: list[str]) -> list[dict[str, str]]:
    """Return tolerations of the taints that groups of these types have in the file."""
    tolerations: list[dict[str, str]] = []
    for group in cluster.instance_groups:
        if not set(group.types) & set(types):
            continue
        for taint in group.taints:
            toleration = {"key": taint.key, "operator": "Exists", "effect": taint.effect}
            if taint.value is not None:
                toleration |= {"operator": "Equal", "value": taint.value}
            if toleration not in (*tolerations, _GPU_TOLERATION):
                tolerations.append(toleration)
    return tolerations
