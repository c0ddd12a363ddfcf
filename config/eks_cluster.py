"""Typed cluster file for EKS, and its groups for Kubernetes's own pods."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.config import JsonDict

from config import text_forms as forms
from config.cluster import Cluster, InstanceGroup, RoleName
from config.facts.gpu_slices import CONFIG_LABEL, GpuSlice, slices_of
from config.kubernetes import Kubernetes
from config.section import Section
from config.task_governance import TaskGovernance, Team

# Editors check the keys by this pattern; the rules check them for the command line.
_LABEL_KEYS: JsonDict = {"propertyNames": {"pattern": forms.LABEL_KEY.pattern}}
LabelValue = Annotated[str, forms.field(forms.LABEL_VALUE)]
MANAGED_PERCENT = 20
"""Least share of each node's memory that HyperPod's managed tier takes, in percent."""


class Taint(Section):
    """Taint, which keeps away pods that do not tolerate it."""

    key: Annotated[str, forms.field(forms.LABEL_KEY, max_length=317)]
    """Key, for example nvidia.com/gpu."""
    value: LabelValue | None = None
    """Value of the taint; null has no value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    """Effect on pods without a toleration: they are not placed on the node (NoSchedule), they are placed
    there only if no other node is free (PreferNoSchedule), or they are also evicted (NoExecute)."""


class EksInstanceGroup(InstanceGroup):
    """Nodes of interchangeable types, which run all pods that their labels and taints admit."""

    max_instances: Annotated[int, Field(ge=1, le=6758)] | None = None
    """Most nodes of a group that Karpenter scales from 0 according to the waiting pods. Requires
    ``autoscaling: karpenter`` and ``num_instances: 0``. Null keeps ``num_instances`` nodes."""
    labels: Annotated[
        dict[str, LabelValue], Field(max_length=50, json_schema_extra=_LABEL_KEYS)
    ] = Field(default={})
    """Labels of every node of the group, including replaced nodes."""
    taints: Annotated[list[Taint], Field(max_length=50)] = Field(default=[])
    """Taints of every node of the group. Kubernetes's own pods, such as CoreDNS, need untainted nodes."""
    image_release_version: (
        Annotated[str, forms.field(forms.RELEASE_VERSION, max_length=64)] | None
    ) = None
    """Release of HyperPod's image; null is the current release."""
    mig_profile: str | None = None
    """Profile of the slices into which each GPU is divided (NVIDIA MIG), for example 1g.10gb. Jobs then have
    slices and no whole GPUs. Null keeps the GPUs whole."""

    @property
    def gpu_slice(self) -> GpuSlice | None:
        """Return the slices of the group's GPUs; None if the GPUs are whole."""
        return None if self.mig_profile is None else slices_of(self.types[0])[self.mig_profile]

    @property
    def node_labels(self) -> dict[str, str]:
        """Return the labels of the group's nodes, with the one that divides their GPUs."""
        divided = {CONFIG_LABEL: self.gpu_slice.layout} if self.gpu_slice else {}
        return self.labels | divided


class MemoryStates(Section):
    """Newest states of training jobs in the memory of their nodes (``train.memory_checkpoint_steps``)."""

    storage: Literal["nodes", "managed"] = "nodes"
    """A folder on each node, which the stack gives to every namespace of jobs (nodes), or the memory of
    HyperPod's managed tiered checkpointing (managed)."""
    percent: Annotated[int, Field(ge=20, le=70)] | None = None
    """Share of each node's memory that the managed tier takes from jobs, in percent; null is 20. HyperPod
    accepts up to 100, but a job needs memory of its own."""

    @property
    def managed_percent(self) -> int:
        """Return the share of each node's memory that the managed tier takes; 0 without it."""
        return (self.percent or MANAGED_PERCENT) if self.storage == "managed" else 0


class EksCluster(Cluster):
    """One HyperPod cluster with EKS, and all it depends on."""

    scheduler: Literal["eks"]
    """Scheduler, which places jobs; eks for this kind of file."""
    instance_groups: Annotated[list[EksInstanceGroup], Field(min_length=1, max_length=100)]
    """At least one group with a node that Kubernetes's own pods can run on."""
    kubernetes: Kubernetes = Kubernetes()
    """EKS control plane: version, network access, permissions and logs."""
    training_operator: Literal["hyperpod", "kubeflow"] = "hyperpod"
    """Operator of training jobs: HyperPod's (HyperPodPyTorchJob, which restarts processes in their pods and
    detects hung processes from their logs) or Kubeflow's (PyTorchJob)."""
    continuous_provisioning: bool = True
    """The cluster uses the available nodes and waits for the rest; fixed at creation. Required for
    ``storage.kms`` other than aws, ``autoscaling``, ``min_instances`` and spot."""
    autoscaling: Literal["none", "karpenter"] = "none"
    """Karpenter, which HyperPod runs, adds and removes nodes of groups with ``max_instances``."""
    autoscaling_role: RoleName | None = None
    """Existing IAM role of HyperPod's Karpenter. Null creates one if ``autoscaling`` needs it."""
    task_governance: TaskGovernance | None = None
    """Quotas of teams and priorities of jobs. Null has one team and runs jobs in the order of submission."""
    memory_states: MemoryStates | None = None
    """Newest states of training jobs in memory, from which they continue after a fault. Null keeps none."""
    prometheus: bool = True
    """Amazon Managed Prometheus workspace in the storage stack, and HyperPod's observability add-on, which
    writes to it. It bills by samples."""
    container_insights: bool = False
    """CloudWatch metrics and logs of pods and nodes; CloudWatch bills for both."""

    @property
    def teams(self) -> list[Team]:
        return self.task_governance.teams if self.task_governance else []

    @property
    def managed_memory_percent(self) -> int:
        """Return the share of each node's memory that HyperPod's managed tier takes; 0 without it."""
        return self.memory_states.managed_percent if self.memory_states else 0


def has_node_memory(cluster: EksCluster) -> bool:
    """Return whether the stack gives namespaces of jobs a folder in the memory of nodes."""
    return cluster.memory_states is not None and cluster.memory_states.storage == "nodes"


def has_slices(cluster: EksCluster) -> bool:
    """Return whether GPUs of a group are divided."""
    return any(group.mig_profile is not None for group in cluster.instance_groups)


def scaled_groups(cluster: EksCluster) -> list[EksInstanceGroup]:
    """Return the groups to which Karpenter adds nodes, and from which it removes them."""
    return [group for group in cluster.instance_groups if group.max_instances is not None]


def lasting_groups(cluster: EksCluster) -> list[EksInstanceGroup]:
    """Return the groups of nodes that always exist and admit all pods."""
    return [
        group
        for group in cluster.instance_groups
        if group.num_instances
        and group.capacity != "spot"
        and all(taint.effect == "PreferNoSchedule" for taint in group.taints)
    ]


def system_groups(cluster: EksCluster) -> list[EksInstanceGroup]:
    """Return the groups that must have a node before anything that needs nodes is installed.

    Groups without accelerators come first, because capacity for the others may take hours, and their deep
    health checks keep pods off for up to two more. The second choice is groups that wait for neither a plan
    nor checks, and the last is all groups. A rule ensures that a cluster file has at least one.
    """
    possible = lasting_groups(cluster)
    plain = [group for group in possible if not group.hardware.accelerator]
    prompt = [
        group for group in possible if not group.training_plan_arn and not group.deep_health_checks
    ]
    return plain or prompt or possible
