"""Section ``task_governance`` of a cluster file: the teams' shares of an EKS cluster."""

from typing import Annotated, Literal

from pydantic import Field

from config import text_forms as forms
from config.facts.gpu_slices import slices_of
from config.facts.instance_catalogue import INSTANCE_TYPES
from config.section import Section

MAX_NAME = 40
"""Most characters of a team's name: hyperpod-ns-<team>-localqueue is a label value, of at most 63."""

TeamName = Annotated[str, forms.field(forms.TEAM_NAME, max_length=MAX_NAME)]
BORROW_LIMIT_PERCENT = 50
"""The service's default, which its API requires for a team that borrows."""
Amount = Annotated[int, Field(ge=1, le=10_000_000)]


class Quota(Section):
    """Amount of one instance type: instances, accelerators, slices of GPUs, or only CPUs and memory."""

    instance_type: str
    """Instance type of one of the cluster's groups."""
    num_instances: Amount | None = None
    """Whole nodes."""
    num_accelerators: Amount | None = None
    """GPUs or Neuron devices, with a proportional share of the nodes' CPUs and memory."""
    num_slices: Amount | None = None
    """Slices of GPUs in groups with ``mig_profile``, with a proportional share of CPUs and memory."""
    mig_profile: str | None = None
    """Profile of these slices, for example 1g.10gb."""
    vcpus: Amount | None = None
    """vCPUs, in place of the proportional share. Without accelerators or slices, vCPUs alone, and memory in
    proportion."""
    memory_gib: Amount | None = None
    """Memory in GiB, in place of the proportional share. Without accelerators or slices, memory alone, and
    vCPUs in proportion."""

    @property
    def nodes(self) -> float:
        """Share of nodes whose CPUs and memory belong to a quota that does not state them.

        With only one of the two stated, the service allocates the other in proportion (API reference,
        ComputeQuotaResourceConfig).
        """
        instance = INSTANCE_TYPES[self.instance_type]
        found = slices_of(self.instance_type).get(self.mig_profile or "")
        if self.num_slices is not None and found:
            return self.num_slices / found.per_node(instance)
        if self.num_accelerators is not None:
            return self.num_accelerators / max(1, instance.num_accelerators)
        if self.num_instances is not None:
            return self.num_instances
        return max((self.vcpus or 0) / instance.vcpus, (self.memory_gib or 0) / instance.memory_gib)

    @property
    def all_vcpus(self) -> float:
        """Number of vCPUs of the quota, stated or in proportion."""
        if self.vcpus is not None:
            return self.vcpus
        return self.nodes * INSTANCE_TYPES[self.instance_type].vcpus

    @property
    def all_memory_gib(self) -> float:
        """Memory of the quota in GiB, stated or in proportion."""
        if self.memory_gib is not None:
            return self.memory_gib
        return self.nodes * INSTANCE_TYPES[self.instance_type].memory_gib


class Team(Section):
    """People who share a quota; their jobs run in the namespace hyperpod-ns-<name>."""

    name: TeamName
    """Name of the team; fixed at creation."""
    quota: Annotated[list[Quota], Field(max_length=15)] = Field(default=[])
    """Quotas of the team. Without any, its jobs run only on lent nodes."""
    fair_share_weight: Annotated[int, Field(ge=0, le=100)] = 0
    """Weight for idle nodes, relative to the other teams; 0 comes last."""
    sharing: Literal["lend", "dont_lend", "lend_and_borrow"] = "lend_and_borrow"
    """Whether other teams may use idle parts of this quota, and this team idle parts of theirs."""
    borrow_limit_percent: Annotated[int, Field(ge=1, le=500)] | None = None
    """Share of idle compute that the team may borrow, in percent; null is the service's default, 50."""
    borrow_limits: Annotated[list[Quota], Field(max_length=15)] = Field(default=[])
    """Most that the team may borrow of single instance types, in place of ``borrow_limit_percent``."""
    preemption: Literal["lower_priority", "never"] = "lower_priority"
    """Whether a job of the team may stop another job of the same team with a lower priority."""


class PriorityClass(Section):
    """Urgency of a job."""

    # SageMaker has the same form for the names of teams and classes.
    name: TeamName
    """Name of the class; jobs refer to it as <name>-priority."""
    weight: Annotated[int, Field(ge=0, le=100)]
    """Weight of the class; higher weights run first."""


class TaskGovernance(Section):
    """SageMaker HyperPod task governance, which is Kueue with quotas of teams and priorities of jobs."""

    teams: list[Team] = Field(default=[])
    """Teams, each with its own namespace and queue."""
    priority_classes: Annotated[list[PriorityClass], Field(max_length=10)] = Field(default=[])
    """Priority classes. Without any, jobs run in the order of submission."""
    fair_share: bool = True
    """Lend idle nodes by the teams' weights; otherwise to the team that requests them first."""
    lend_unallocated: bool = True
    """Lend nodes outside all quotas too; otherwise they stay idle."""


def team_namespace(team_name: str) -> str:
    """Return the namespace of a team (CloudFormation schema of AWS::SageMaker::ComputeQuota)."""
    return f"hyperpod-ns-{team_name}"
