"""Values of HyperPod's Helm chart, which turn its parts on or off.

Device plugins run only on nodes that have the devices.
"""

from typing import Any

from config.eks_cluster import EksCluster
from config.facts.instance_catalogue import instance_type

TYPE_LABEL = "node.kubernetes.io/instance-type"

# HyperPod's own: nodes that are checked or about to be replaced keep their devices known.
HEALTH_TOLERATION = {
    "key": "sagemaker.amazonaws.com/node-health-status",
    "operator": "Equal",
    "value": "Unschedulable",
    "effect": "NoSchedule",
}
_GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def chart_values(cluster: EksCluster) -> dict[str, Any]:
    """Values of the chart in ``manifests/charts.json``; docs/charts.md says what its parts are.

    Its lists of instance types are replaced by this cluster's: the EFA plugin's own holds types without EFA,
    on which it fails again and again, and lacks newer ones, which would have no EFA (sagemaker-hyperpod-cli,
    issue 367 and pull request 380).
    """
    types = {name: instance_type(name) for name in (group.instance_type for group in cluster.instance_groups)}
    gpu = [name for name, found in types.items() if found.num_gpus]
    neuron = [name for name, found in types.items() if found.num_neuron_devices]
    efa = [name for name, found in types.items() if found.num_efa]
    on_gpu_nodes = {"key": TYPE_LABEL, "operator": "In", "values": gpu}
    return {
        "trainingOperators": {"enabled": cluster.training_operator == "kubeflow"},
        "health-monitoring-agent": {"enabled": True, "region": cluster.region},
        "deep-health-check": {"enabled": True},
        "job-auto-restart": {"enabled": True},
        "hyperpod-patching": {"enabled": True},
        "nvidia-device-plugin": {
            "devicePlugin": {"enabled": bool(gpu)},
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
        # Add-ons of EKS, or not of use to training.
        **{
            name: {"enabled": False}
            for name in (
                *("cert-manager", "storage", "mlflow", "mpi-operator", "inferenceOperators", "gpu-operator"),
                *("hyperpod-ray-endpoint-operator", "cluster-role-and-bindings"),
                *("namespaced-role-and-bindings", "team-role-and-bindings"),
            )
        },
    }


def neuron_tolerations(cluster: EksCluster) -> list[dict[str, str]]:
    """Tolerations of Neuron's plugin, for which the chart has no values; empty on a cluster without it.

    They begin with the chart's own, which a patch of the list replaces.
    """
    groups = [group.instance_type for group in cluster.instance_groups]
    types = [name for name in groups if instance_type(name).num_neuron_devices]
    neuron = {"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"}
    own = [{"key": "CriticalAddonsOnly", "operator": "Exists"}, neuron, HEALTH_TOLERATION]
    return [*own, *_tolerations(cluster, types)] if types else []


def _tolerations(cluster: EksCluster, types: list[str]) -> list[dict[str, str]]:
    """Return tolerations of the taints that the file gives to groups of these types."""
    tolerations: list[dict[str, str]] = []
    for group in cluster.instance_groups:
        for taint in group.taints if group.instance_type in types else ():
            toleration = {"key": taint.key, "operator": "Exists", "effect": taint.effect}
            if taint.value is not None:
                toleration |= {"operator": "Equal", "value": taint.value}
            if toleration not in (*tolerations, _GPU_TOLERATION):
                tolerations.append(toleration)
    return tolerations
