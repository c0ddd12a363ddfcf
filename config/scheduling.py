"""Section ``scheduling`` of a cluster file: Slurm's QOS, limits, and options of partitions."""

from typing import Annotated

from pydantic import Field

from config import text_forms as forms
from config.section import Section

MAX_LIMIT = 2**32 - 3
"""Largest limit. Slurm gives the next two numbers of 32 bits the meanings none and infinite."""
MAX_PRIORITY = 2**31 - 1
"""Largest priority of a QOS here, within Slurm's 32 bits for programs with a sign."""
MAX_TIER = 65533
"""Largest priority tier (slurm.conf manual, ``PriorityTier``)."""
FIRST_QOS = "normal"
"""QOS that Slurm's database has from its start, and that accounts use without a setting."""
COMMON_PARTITION = "dev"
"""Partition that HyperPod creates itself, with all nodes."""

SlurmName = Annotated[str, forms.field(forms.LOWER_CASE_NAME, max_length=255)]
"""Name of a QOS or account; Slurm's database stores lower case and up to 255 bytes."""
SlurmTime = Annotated[str, forms.field(forms.SLURM_TIME)]
Limit = Annotated[int, Field(ge=0, le=MAX_LIMIT)]


class JobLimits(Section):
    """Limits of running and waiting jobs together. Null sets none, and keeps one that was set by hand."""

    max_jobs: Limit | None = None
    """Jobs that run at the same time; further ones wait."""
    max_submitted_jobs: Limit | None = None
    """Jobs that run and wait; further ones are refused, all of them with 0."""
    max_nodes: Limit | None = None
    """Nodes of all running jobs."""
    max_gpus: Limit | None = None
    """GPUs of all running jobs. Slurm counts only those that jobs request with --gpus or --gres."""


class Qos(JobLimits):
    """Quality of service, which a job gets with `sbatch --qos`. The limits are those of all its jobs."""

    name: SlurmName
    """Name for `sbatch --qos`; normal exists already, and gets these settings."""
    priority: Annotated[int, Field(ge=0, le=MAX_PRIORITY)] | None = None
    """Priority relative to other QOS, which counts if slurm.conf has a PriorityWeightQOS."""
    max_time: SlurmTime | None = None
    """Longest run time of one job, as 7-00:00 for seven days."""
    per_user: JobLimits | None = None
    """Limits of each user's jobs in this QOS."""


class PartitionOptions(Section):
    """Options of a partition, in addition to its nodes, which HyperPod sets."""

    name: Annotated[str, forms.field(forms.PARTITION, max_length=1024)]
    """Partition of a worker group, or dev, which HyperPod creates with all nodes."""
    default: bool = False
    """Jobs without `--partition` run here instead of in HyperPod's dev."""
    max_time: SlurmTime | None = None
    """Longest run time of a job, as 7-00:00; null has no limit of the partition's own."""
    default_time: SlurmTime | None = None
    """Run time of jobs that state none; null is ``max_time``."""
    max_nodes: Annotated[int, Field(ge=1, le=MAX_LIMIT)] | None = None
    """Most nodes of one job."""
    priority_tier: Annotated[int, Field(ge=1, le=MAX_TIER)] | None = None
    """Jobs of a partition with a higher tier are considered first; Slurm's default is 1."""
    qos: SlurmName | None = None
    """QOS whose limits apply to all jobs of the partition, in addition to those of their own QOS."""
    allow_qos: list[SlurmName] = Field(default=[])
    """QOS whose jobs the partition takes; an empty list takes all."""
    allow_accounts: list[SlurmName] = Field(default=[])
    """Accounts of ``access.accounts`` whose jobs the partition takes; an empty list takes all."""


class Scheduling(Section):
    """QOS and options of partitions. ``access.accounts`` has the limits of accounts."""

    enforce: bool
    """Node setup has slurm.conf hold jobs to accounts, QOS and limits, and restarts slurmctld once for that.
    Users without an account, such as ubuntu, then submit no jobs. With false, limits do nothing unless
    slurm.conf enforces them already, and node setup warns of that."""
    qos: list[Qos] = Field(default=[])
    """QOS. Others in Slurm's database stay as they are."""
    partitions: list[PartitionOptions] = Field(default=[])
    """Options of partitions, which a service on the controller sets again after restarts of slurmctld."""
