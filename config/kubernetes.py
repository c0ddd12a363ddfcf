"""The kubernetes of a cluster file: EKS's control plane, and who may use it."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from config import text_forms as forms
from config.cluster import LogDays
from config.section import Section

# HyperPod runs 1.28 to 1.34 (SageMaker developer guide, "Getting started with Amazon EKS support"); those
# before 1.33 near the end of EKS's support (EKS user guide, "Understand the Kubernetes version lifecycle").
Version = Literal["1.33", "1.34"]
PublicCidr = Annotated[str, forms.field(forms.PUBLIC_CIDR)]
Namespace = Annotated[str, forms.field(forms.NAMESPACE, max_length=63)]
LogKind = Literal["api", "audit", "authenticator", "controllerManager", "scheduler"]
MAX_PUBLIC_CIDRS = 40
"""EKS user guide, "Service quotas": public endpoint access ranges of a cluster."""


class AccessEntry(Section):
    """What an IAM role or user may do in Kubernetes."""

    principal_arn: Annotated[str, forms.field(forms.PRINCIPAL_ARN, max_length=2048)]
    """The role or user itself, not a session of it; each has one entry."""
    level: Literal["cluster_admin", "admin", "edit", "view"]
    """EKS's access policies: everything; all in namespaces, with their roles; their workloads and secrets; or
    to look at them, without secrets."""
    namespaces: list[Namespace] = Field(default=[])
    """Where an admin, edit or view holds, as hyperpod-ns-<team>; none are all namespaces."""


class Kubernetes(Section):
    """EKS's control plane."""

    version: Version = "1.34"
    """In quotes, or YAML takes it for a number. Raised by one at a time, never lowered."""
    endpoint: Literal["private", "public_and_private"] = "private"
    """From where the API server is reached: the VPC alone, or also ``public_access_cidrs``."""
    public_access_cidrs: Annotated[list[PublicCidr], Field(max_length=MAX_PUBLIC_CIDRS)] = Field(default=[])
    """Public address ranges from which the API server is reached, as an office's; not the whole internet."""
    control_plane_logs: list[LogKind] = Field(default=list(get_args(LogKind)))
    """Kinds of logs that go to CloudWatch, which bills for them."""
    control_plane_log_days: LogDays = 90
    """How long they are kept."""
    access: list[AccessEntry] = Field(default=[])
    """Who may use the cluster beside the stacks themselves; without an entry, nobody."""
