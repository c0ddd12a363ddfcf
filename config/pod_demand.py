"""Number of pods that the stack installs on EKS nodes, and of pods that a node can hold.

The numbers of pods come from the add-ons' published charts and documents, as of November 2026. They have not
been counted on a cluster, so preflight only warns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from config.eks_cluster import (
    EksCluster,
    EksInstanceGroup,
    has_node_memory,
    has_slices,
    lasting_groups,
)
from config.facts import addons
from config.facts.instance_catalogue import InstanceType

JOB_PODS = 1
"""Pods of a job on a node. A job's pod has the whole node, or a slice of a GPU."""


@dataclass(frozen=True)
class Pods:
    """Pods of one part of the stack. The fields after ``once`` are numbers per node."""

    once: int = 0
    """Pods of Deployments, which run on nodes that admit all pods."""
    node: int = 0
    gpu_node: int = 0
    neuron_node: int = 0
    efa_node: int = 0

    def on(self, hardware: InstanceType) -> int:
        """Return the pods on each node of a type."""
        count = self.node
        count += self.gpu_node if hardware.num_gpus else 0
        count += self.neuron_node if hardware.num_neuron_devices else 0
        count += self.efa_node if hardware.num_efa else 0
        return count


ADDON_PODS: Mapping[str, Pods] = {
    addons.VPC_CNI: Pods(node=1),
    addons.KUBE_PROXY: Pods(node=1),
    addons.POD_IDENTITY_AGENT: Pods(node=1),
    # The driver on each node, and two controllers.
    addons.LUSTRE_DRIVER: Pods(once=2, node=1),
    addons.COREDNS: Pods(once=2),
    # The controller, the injector of certificates and the webhook.
    addons.CERT_MANAGER: Pods(once=3),
    addons.TRAINING_OPERATOR: Pods(once=1),
    addons.TASK_GOVERNANCE: Pods(once=1),
    # The operator, the central collector and kube-state-metrics; on nodes a collector and the exporters.
    addons.OBSERVABILITY: Pods(once=3, node=2, gpu_node=1, neuron_node=1, efa_node=1),
    # The operator; on nodes the agent, the log forwarder and the exporters.
    addons.CONTAINER_INSIGHTS: Pods(once=1, node=2, gpu_node=1, neuron_node=1),
}
CHART_PODS = Pods(once=2, gpu_node=2, neuron_node=2, efa_node=1)
"""HyperPod's chart: the controllers of restarts and checks; on nodes the health agent and the plugins."""
COLLECTOR_PODS = Pods(once=1)
"""Collector of training metrics (``manifests/training_collector.py``)."""
NODE_MEMORY_PODS = Pods(node=1)
"""Keeper of the folders in the memory of nodes (``manifests/node_memory.py``)."""
KUBEFLOW_PODS = Pods(once=1)
GPU_OPERATOR_PODS = Pods(once=3, node=1, gpu_node=4)
"""NVIDIA's GPU Operator: the operator and two of node feature discovery. On nodes: the worker of node feature
discovery, and with GPUs toolkit, feature discovery, mig-manager and validator. Its device plugin takes the
place of that of HyperPod's chart."""


def pod_room(hardware: InstanceType) -> int:
    """Return the pods that a node can hold, which is the limit that HyperPod gives the kubelet.

    A HyperPod node has one interface for pods, with one address for the node itself: 14 pods on an
    ml.g5.xlarge, whose interface has 15 addresses (aws/sagemaker-hyperpod-cli issue 142,
    aws/amazon-vpc-cni-k8s pull request 3754).
    """
    return hardware.addresses_per_interface - 1


def installed_addons(cluster: EksCluster) -> set[str]:
    """Return the add-ons that the stack installs for a cluster file."""
    names = {
        addons.VPC_CNI,
        addons.KUBE_PROXY,
        addons.POD_IDENTITY_AGENT,
        addons.LUSTRE_DRIVER,
        addons.COREDNS,
        addons.CERT_MANAGER,
    }
    optional = {
        addons.TRAINING_OPERATOR: cluster.training_operator == "hyperpod",
        addons.TASK_GOVERNANCE: cluster.task_governance is not None,
        addons.OBSERVABILITY: cluster.prometheus,
        addons.CONTAINER_INSIGHTS: cluster.container_insights,
    }
    return names | {name for name, is_used in optional.items() if is_used}


def _parts(cluster: EksCluster) -> Iterator[Pods]:
    yield from (ADDON_PODS[name] for name in installed_addons(cluster))
    yield CHART_PODS
    if cluster.prometheus:
        yield COLLECTOR_PODS
    if has_node_memory(cluster):
        yield NODE_MEMORY_PODS
    if cluster.training_operator == "kubeflow":
        yield KUBEFLOW_PODS
    if has_slices(cluster):
        yield GPU_OPERATOR_PODS


def pods_on_each_node(cluster: EksCluster, group: EksInstanceGroup) -> int:
    """Return the pods that each node of a group runs: those of DaemonSets, and of a job if it runs jobs."""
    hardware = group.hardware
    jobs = 1 if hardware.accelerator else 0
    if group.gpu_slice:
        jobs = group.gpu_slice.per_node(hardware)
    return sum(part.on(hardware) for part in _parts(cluster)) + JOB_PODS * jobs


def pods_anywhere(cluster: EksCluster) -> int:
    """Return the pods of Deployments, which need room on nodes that always exist."""
    return sum(part.once for part in _parts(cluster))


def room_anywhere(cluster: EksCluster) -> int:
    """Return the room for these pods beside the others, on the nodes that always exist."""
    return sum(
        group.num_instances * max(0, free_room(cluster, group)) for group in lasting_groups(cluster)
    )


def free_room(cluster: EksCluster, group: EksInstanceGroup) -> int:
    """Return a node's room beside its own pods; negative if they do not fit."""
    return pod_room(group.hardware) - pods_on_each_node(cluster, group)
