"""Cluster file for EKS, and its groups for Kubernetes's own pods."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.config import JsonDict

from config import text_forms as forms
from config.cluster import Cluster, InstanceGroup
from config.facts.instance_catalogue import instance_type
from config.kubernetes import Kubernetes
from config.section import Section
from config.task_governance import TaskGovernance, Team

# What an editor knows of the keys; the rules look at them.
_LABEL_KEYS: JsonDict = {"propertyNames": {"pattern": forms.LABEL_KEY.pattern}}
LabelValue = Annotated[str, forms.field(forms.LABEL_VALUE)]


class Taint(Section):
    """Keeps pods away that do not tolerate it."""

    key: Annotated[str, forms.field(forms.LABEL_KEY, max_length=317)]
    """As nvidia.com/gpu."""
    value: LabelValue | None = None
    """Null is a taint without one."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    """Not placed there, placed there last, or also taken away from there."""


class EksInstanceGroup(InstanceGroup):
    """Nodes of one type, which run any pod that their labels and taints let in."""

    max_instances: Annotated[int, Field(ge=1, le=6758)] | None = None
    """Makes the group Karpenter's, which has between 0 and this many nodes as pods ask for them; needs
    ``autoscaling: karpenter`` and ``num_instances: 0``. Null keeps ``num_instances`` nodes."""
    labels: Annotated[dict[str, LabelValue], Field(max_length=50, json_schema_extra=_LABEL_KEYS)] = Field(
        default={}
    )
    """On every node of the group, also on replaced ones."""
    taints: Annotated[list[Taint], Field(max_length=50)] = Field(default=[])
    """On every node of the group. Kubernetes's own pods, as CoreDNS, need nodes without."""
    image_release_version: Annotated[str, forms.field(forms.RELEASE_VERSION, max_length=64)] | None = None
    """HyperPod's image by its release; null is the current one."""


class EksCluster(Cluster):
    """One HyperPod cluster with EKS, and all it depends on."""

    scheduler: Literal["eks"]
    """What places jobs: eks here."""
    instance_groups: Annotated[list[EksInstanceGroup], Field(min_length=1, max_length=100)]
    """At least one group with a node that Kubernetes's own pods can run on."""
    kubernetes: Kubernetes = Kubernetes()
    """EKS's control plane: version, who reaches it and may use it, logs."""
    training_operator: Literal["hyperpod", "kubeflow"] = "hyperpod"
    """Who runs training jobs: HyperPod's operator (HyperPodPyTorchJob, which restarts processes in their pods
    and finds hung ones by their logs) or Kubeflow's (PyTorchJob)."""
    continuous_provisioning: bool = True
    """The cluster takes the nodes that there are and waits for the rest; fixed at creation. Needed for
    ``storage.kms`` other than aws, ``autoscaling``, ``min_instances`` and spot."""
    autoscaling: Literal["none", "karpenter"] = "none"
    """Karpenter, which HyperPod runs, adds and removes nodes of groups with ``max_instances``."""
    task_governance: TaskGovernance | None = None
    """Quotas of teams and priorities of jobs. Null: one team, first come, first served."""
    prometheus: bool = True
    """An Amazon Managed Prometheus workspace, in the storage stack, and HyperPod's observability add-on, that
    writes to it. It bills by samples."""
    container_insights: bool = False
    """CloudWatch's own metrics and logs of pods and nodes; it bills for both."""

    @property
    def teams(self) -> list[Team]:
        return self.task_governance.teams if self.task_governance else []


def scaled_groups(cluster: EksCluster) -> list[EksInstanceGroup]:
    """Groups whose nodes Karpenter adds and removes."""
    return [group for group in cluster.instance_groups if group.max_instances is not None]


def lasting_groups(cluster: EksCluster) -> list[EksInstanceGroup]:
    """Groups whose nodes are always there and let any pod in."""
    return [
        group
        for group in cluster.instance_groups
        if group.num_instances
        and group.capacity != "spot"
        and all(taint.effect == "PreferNoSchedule" for taint in group.taints)
    ]


def system_groups(cluster: EksCluster) -> list[EksInstanceGroup]:
    """Groups whose first nodes must be there before anything is installed that needs nodes.

    Those without accelerators if there are any: capacity for the others may be hours away, and their deep
    health checks, which keep pods off, take up to two more. Else the ones that wait for neither a plan nor
    checks, else all. That there is one at all is a rule of the cluster file.
    """
    possible = lasting_groups(cluster)
    plain = [group for group in possible if not instance_type(group.instance_type).accelerator]
    prompt = [group for group in possible if not group.training_plan_arn and not group.deep_health_checks]
    return plain or prompt or possible
