"""Changes of objects of HyperPod's chart for which the chart has no values."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from config.eks_cluster import EksCluster
from manifests.chart_values import HEALTH_TOLERATION, neuron_tolerations
from manifests.objects import SYSTEM_NAMESPACE
from manifests.public_images import NEURON_PLUGIN, takes_copies

RELEASE = "hyperpod-dependencies"
OPERATOR = f"{RELEASE}-training-operators"
"""Deployment of Kubeflow's training operator; the chart derives the name from the release."""
OPERATOR_NAMESPACE = "kubeflow"
NEURON_DAEMONS = "neuron-device-plugin-daemonset"
"""DaemonSet of the chart's part neuron-device-plugin."""
NEURON_CONTAINER = "neuron-device-plugin"
"""Container of its pods."""
NAMESPACE = SYSTEM_NAMESPACE
"""Namespace of the release (SageMaker developer guide, "Install packages using Helm").

Most parts of the chart have a different namespace.
"""


@dataclass(frozen=True)
class PodPatch:
    """Change of the pods of one part of the chart."""

    construct_id: str
    namespace: str
    kind: str
    """Kind of the object, in lower case."""
    name: str
    pod_spec: dict[str, Any]
    overrides_chart: bool = False
    """Whether the chart sets these fields, too. Helm then sets them back at each upgrade, and the patch must
    be applied again. It leaves fields alone that the chart does not set."""


def chart_patches(cluster: EksCluster, repository: str) -> list[PodPatch]:
    """Return the patches that the cluster needs.

    Args:
        cluster: cluster of the chart.
        repository: address of the cluster's image repository.
    """
    patches: list[PodPatch] = []
    if cluster.training_operator == "kubeflow":
        # Without the toleration, the operator waits while all nodes are in deep health checks
        # (sagemaker-hyperpod-cli, pull request 449).
        patches.append(
            PodPatch(
                "OperatorTolerations",
                namespace=OPERATOR_NAMESPACE,
                kind="deployment",
                name=OPERATOR,
                pod_spec={"tolerations": [HEALTH_TOLERATION]},
            )
        )
    tolerations = neuron_tolerations(cluster)
    if tolerations:
        # The plugin reads the instance metadata, which it can reach only from the node's network.
        pod_spec: dict[str, Any] = {"hostNetwork": True, "tolerations": tolerations}
        if takes_copies(cluster):
            image = NEURON_PLUGIN.copy_in(repository)
            pod_spec["containers"] = [{"name": NEURON_CONTAINER, "image": image}]
        patches.append(
            PodPatch(
                "NeuronPlugin",
                namespace=NAMESPACE,
                kind="daemonset",
                name=NEURON_DAEMONS,
                pod_spec=pod_spec,
                overrides_chart=True,
            )
        )
    return patches


def patched(objects: Sequence[dict[str, Any]], patches: Sequence[PodPatch]) -> list[dict[str, Any]]:
    """Return the chart's objects as they are after the patches.

    Raises:
        ValueError: if a patch names an object or a container that the chart does not have.
    """
    changed = copy.deepcopy(list(objects))
    for patch in patches:
        pod = _pod_of(changed, patch)
        fields = dict(patch.pod_spec)
        for container in fields.pop("containers", []):
            _container_of(pod, container["name"], patch).update(container)
        pod.update(fields)
    return changed


def _pod_of(objects: Sequence[dict[str, Any]], patch: PodPatch) -> dict[str, Any]:
    for found in objects:
        metadata = found["metadata"]
        is_named = (found["kind"].lower(), metadata["name"]) == (patch.kind, patch.name)
        if is_named and metadata.get("namespace") == patch.namespace:
            pod: dict[str, Any] = found["spec"]["template"]["spec"]
            return pod
    raise ValueError(
        f"the chart has no {patch.kind} {patch.name} in namespace {patch.namespace}, which "
        "manifests/chart_patches.py changes"
    )


def _container_of(pod: dict[str, Any], name: str, patch: PodPatch) -> dict[str, Any]:
    for container in pod["containers"]:
        if container["name"] == name:
            found: dict[str, Any] = container
            return found
    names = ", ".join(container["name"] for container in pod["containers"])
    raise ValueError(
        f"{patch.kind} {patch.name} of the chart has the containers {names}, and "
        f"manifests/chart_patches.py changes {name}"
    )
