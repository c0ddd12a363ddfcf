"""Values of NVIDIA's GPU Operator, which divides the GPUs of groups with ``mig_profile``.

The chart is that of NVIDIA's tag v26.3.1. The values are those of HyperPod's chart for it
(sagemaker-hyperpod-cli, helm_chart/HyperPodHelmChart/charts/gpu-operator). It is a release of its own: Helm
installs a chart's kinds of objects only with a new release, and a cluster may get its first divided group
later.

The parts that work here: mig-manager carries out the layout in a node's label, the device plugin with the
strategy ``mixed`` offers each kind of slice as a resource, and feature discovery labels the nodes. The driver
is that of HyperPod's image.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from config.eks_cluster import EksCluster
from manifests.objects import SYSTEM_NAMESPACE
from manifests.public_images import FEATURE_DISCOVERY, takes_copies

CHART = "gpu-operator"
"""Name of the chart in ``charts.json``, and of its release."""
LAYOUTS = "default-mig-config"
"""ConfigMap with the layouts of GPUs. HyperPod's chart has the same name and label."""
UNDIVIDED = "all-disabled"
"""Layout of nodes without the label: whole GPUs."""
_TOLERATIONS = [{"operator": "Exists"}]
"""Toleration of all taints: of groups, and of nodes in health checks."""
IMAGE_ACCOUNTS: Mapping[str, str] = {
    "ap-northeast-1": "248189928082",
    "ap-northeast-2": "743267407464",
    "ap-south-1": "183295424886",
    "ap-south-2": "580982410692",
    "ap-southeast-1": "235494799058",
    "ap-southeast-2": "495599779797",
    "ap-southeast-3": "112551748145",
    "ap-southeast-4": "872515262625",
    "ca-central-1": "035462350821",
    "eu-central-1": "816069136154",
    "eu-north-1": "495599756225",
    "eu-south-2": "765762660796",
    "eu-west-1": "741448945724",
    "eu-west-2": "869935108213",
    "sa-east-1": "985539796278",
    "us-east-1": "463470961310",
    "us-east-2": "940482419867",
    "us-west-1": "034362067326",
    "us-west-2": "586794468202",
}
"""AWS's account with copies of the operator's images, by region (``regional-values`` of HyperPod's chart).

Nodes without internet access reach them through the interface endpoints of ECR.
"""


def gpu_operator_values(cluster: EksCluster, repository: str) -> dict[str, Any]:
    """Return the values of the chart for a cluster with divided GPUs.

    Args:
        cluster: cluster of the chart.
        repository: address of the cluster's image repository, from which nodes may pull copies.
    """
    registry = f"{IMAGE_ACCOUNTS[cluster.region]}.dkr.ecr.{cluster.region}.amazonaws.com"
    plugin = {"repository": registry, "image": "mirror-k8s-device-plugin", "version": "v0.19.0"}
    off = {"enabled": False}
    discovery: dict[str, Any] = {
        part: {"tolerations": _TOLERATIONS} for part in ("master", "worker", "gc")
    }
    if takes_copies(cluster):
        discovery["image"] = {"repository": repository, "tag": FEATURE_DISCOVERY.pinned_tag}
    return {
        "operator": {
            "repository": registry,
            "image": "mirror-gpu-operator",
            "version": "v26.3.1",
            "tolerations": _TOLERATIONS,
        },
        "daemonsets": {"tolerations": _TOLERATIONS},
        "mig": {"strategy": "mixed"},
        "driver": off,
        "toolkit": {
            "repository": f"{registry}/mirror-k8s",
            "image": "container-toolkit",
            "version": "v1.19.0",
        },
        "devicePlugin": plugin,
        "gfd": plugin,
        "migManager": {
            "repository": f"{registry}/mirror-cloud-native",
            "image": "k8s-mig-manager",
            "version": "v0.14.0",
            "config": {"create": False, "name": LAYOUTS, "default": UNDIVIDED},
            # A GPU enters and leaves MIG mode by a reset, or by a reboot of its node.
            "env": [{"name": "WITH_REBOOT", "value": "true"}],
        },
        "validator": {
            "repository": f"{registry}/mirror-cloud-native",
            "image": "gpu-operator-validator",
            "version": "v26.3.1",
        },
        "dcgm": off,
        "dcgmExporter": off,
        "vgpuDeviceManager": off,
        "vfioManager": off,
        "sandboxDevicePlugin": off,
        "ccManager": off,
        "node-feature-discovery": discovery,
        "extraObjects": [_layouts(cluster)],
    }


def _layouts(cluster: EksCluster) -> dict[str, Any]:
    """Return the ConfigMap with the layout of each divided group."""
    layouts: dict[str, Any] = {UNDIVIDED: [{"devices": "all", "mig-enabled": False}]}
    for group in cluster.instance_groups:
        found = group.gpu_slice
        if found is None:
            continue
        layouts[found.layout] = [
            {
                "devices": "all",
                "mig-enabled": True,
                "mig-devices": {found.profile: found.per_gpu},
            }
        ]
    document = {"version": "v1", "mig-configs": layouts}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": LAYOUTS,
            "namespace": SYSTEM_NAMESPACE,
            "labels": {"sagemaker.amazonaws.com/accelerator-partition-configmap": "true"},
        },
        "data": {"config.yaml": yaml.safe_dump(document, sort_keys=False)},
    }
