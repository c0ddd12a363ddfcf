"""The task_governance of a cluster file: which team may use how much of an EKS cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config import text_forms as forms
from config.section import Section

MAX_NAME = 40
"""Characters: a team's queue, hyperpod-ns-<team>-localqueue, is a label of its jobs, whose value has 63."""

TeamName = Annotated[str, forms.field(forms.TEAM_NAME, max_length=MAX_NAME)]
PriorityClassName = TeamName
"""SageMaker has the same form for both."""


class Quota(Section):
    """What a team has for itself of one instance type, in instances or in accelerators."""

    instance_type: str
    """That of an instance group of the cluster."""
    num_instances: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Whole nodes."""
    num_accelerators: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """GPUs or Neuron devices, with a share of the nodes' CPUs and memory in proportion."""


class Team(Section):
    """Who shares a quota; its jobs run in the namespace hyperpod-ns-<name>."""

    name: TeamName
    """Fixed at creation."""
    quota: Annotated[list[Quota], Field(max_length=15)] = Field(default=[])
    """None: the team's jobs run on what is lent."""
    fair_share_weight: Annotated[int, Field(ge=0, le=100)] = 0
    """Its part of idle nodes, in proportion to the other teams'; 0 comes last."""
    sharing: Literal["lend", "dont_lend", "lend_and_borrow"] = "lend_and_borrow"
    """Whether others may use what is idle of the quota, and the team what is idle of theirs."""
    borrow_limit_percent: Annotated[int, Field(ge=1, le=500)] | None = None
    """How much of what is idle the team may borrow; null is the service's 50."""
    preemption: Literal["lower_priority", "never"] = "lower_priority"
    """Whether a job of the team may stop one of its own of lower priority."""


class PriorityClass(Section):
    """How urgent a job is."""

    name: PriorityClassName
    """Jobs give it as <name>-priority."""
    weight: Annotated[int, Field(ge=0, le=100)]
    """The higher goes first."""


class TaskGovernance(Section):
    """SageMaker HyperPod task governance: Kueue, with quotas of teams and priorities of jobs."""

    teams: list[Team] = Field(default=[])
    """Each with a namespace and a queue of its own."""
    priority_classes: Annotated[list[PriorityClass], Field(max_length=10)] = Field(default=[])
    """None: jobs are taken in the order they came."""
    fair_share: bool = True
    """Idle nodes are lent by the teams' weights; otherwise to who asks first."""
    lend_unallocated: bool = True
    """Nodes that are in no team's quota are lent as well; otherwise they stay idle."""


def team_namespace(team_name: str) -> str:
    """The namespace of a team (CloudFormation schema of AWS::SageMaker::ComputeQuota)."""
    return f"hyperpod-ns-{team_name}"
