"""Section ``kubernetes`` of a cluster file: the EKS control plane and its permissions."""

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal, get_args

from pydantic import Field

from config import text_forms as forms
from config.cluster import LogDays
from config.section import Section

# Versions before 1.33 are out of standard support (EKS user guide, "Understand the Kubernetes version
# lifecycle"), and no add-on version below is known for them.
Version = Annotated[str, forms.field(forms.KUBERNETES_VERSION)]
PublicCidr = Annotated[str, forms.field(forms.PUBLIC_CIDR)]
Namespace = Annotated[str, forms.field(forms.NAMESPACE, max_length=63)]
LogKind = Literal["api", "audit", "authenticator", "controllerManager", "scheduler"]
AccessLevel = Literal["cluster_admin", "admin", "edit", "view", "none"]
ACCESS_POLICIES: dict[AccessLevel, str | None] = {
    "cluster_admin": "AmazonEKSClusterAdminPolicy",
    "admin": "AmazonEKSAdminPolicy",
    "edit": "AmazonEKSEditPolicy",
    "view": "AmazonEKSViewPolicy",
    "none": None,
}
"""Access policies of EKS by the level of an access entry. None gives no access."""
ACCESS_IS_EMPTY = "gives no one access, so no one can use kubectl, or submit or view jobs"
ADD_ACCESS = "add your role, which `aws sts get-caller-identity` prints"
NO_USERS = f"kubernetes.access {ACCESS_IS_EMPTY}; {ADD_ACCESS}"
MAX_PUBLIC_CIDRS = 40
"""Public endpoint access ranges per cluster (EKS user guide, "Service quotas")."""
FIRST_ENTRIES = 160
"""Access entries in the cluster's own stack, unless an earlier version deployed more."""


@dataclass(frozen=True)
class KubernetesVersion:
    kube_proxy: str
    """Version of the add-on kube-proxy, which follows the control plane's."""
    end_of_standard_support: date
    end_of_extended_support: date


KUBERNETES_VERSIONS: dict[str, KubernetesVersion] = {
    "1.33": KubernetesVersion("v1.33.5-eksbuild.2", date(2026, 7, 29), date(2027, 7, 29)),
    "1.34": KubernetesVersion("v1.34.1-eksbuild.2", date(2026, 12, 2), date(2027, 12, 2)),
}
"""End of support per version (EKS user guide, "Understand the Kubernetes version lifecycle"). EKS bills
extended support in addition to the control plane. HyperPod runs these versions (SageMaker developer guide,
"Getting started with Amazon EKS support")."""


def version_warning(version: str) -> str | None:
    """Return what is not known of a version that this project has no facts about; None for known ones."""
    if version in KUBERNETES_VERSIONS:
        return None
    known = " and ".join(KUBERNETES_VERSIONS)
    return (
        f"this project knows Kubernetes {known} on HyperPod. Whether HyperPod runs {version} is not checked,"
        " EKS chooses the version of kube-proxy, and `make cost` does not include extended support"
    )


class AccessEntry(Section):
    """Permissions of an IAM role or user in Kubernetes."""

    principal_arn: Annotated[str, forms.field(forms.PRINCIPAL_ARN, max_length=2048)]
    """ARN of the role or user itself, not of a session; each has one entry."""
    level: AccessLevel
    """EKS access policy. cluster_admin allows everything, and admin everything in namespaces, including their
    roles. edit allows changes to workloads and secrets. view allows reading, except secrets. none takes the
    access away, and keeps the places of the later entries."""
    namespaces: list[Namespace] = Field(default=[])
    """Namespaces in which admin, edit or view applies, such as hyperpod-ns-<team>; empty is all."""

    @property
    def has_access(self) -> bool:
        """Whether EKS has an entry for the role or user."""
        return ACCESS_POLICIES[self.level] is not None


class Kubernetes(Section):
    """EKS control plane."""

    existing: Annotated[str, forms.field(forms.EKS_CLUSTER, max_length=100)] | None = None
    """Name of an EKS cluster of the account and region to use instead of a new one. It keeps its version,
    endpoint, logs, role, add-ons and charts, which `make preflight` checks."""
    version: Version = "1.34"
    """Version in quotes, because YAML reads 1.34 as a number; raised one at a time, never lowered. Versions
    that AWS added later are allowed, with a warning."""
    endpoint: Literal["private", "public_and_private"] = "private"
    """Networks that reach the API server: the VPC only, or also ``public_access_cidrs``."""
    public_access_cidrs: Annotated[list[PublicCidr], Field(max_length=MAX_PUBLIC_CIDRS)] = Field(
        default=[]
    )
    """Public address ranges that may reach the API server, such as an office's; not the whole internet."""
    control_plane_logs: list[LogKind] = Field(default=list(get_args(LogKind)))
    """Kinds of logs that EKS sends to CloudWatch, which bills for them."""
    control_plane_log_days: LogDays = 90
    """Days for which these logs are kept."""
    pod_metadata_access: bool = False
    """Whether pods may reach the instance metadata service, which gives the node's credentials to any pod. By
    default, a network policy and firewall rules block it. Set true only while a pod fails without it."""
    images: Literal["internet", "image_repository"] = "internet"
    """Source of the images of device plugins, Kubeflow's operator and the collector of metrics: the
    publishers' registries, or the cluster's image repository. The repository is for networks without internet
    access: deploy EksStorageStack, run `make mirror-downloads`, then deploy the rest."""
    role: Annotated[str, forms.field(forms.ROLE, max_length=2048)] | None = None
    """Existing IAM role of the control plane, which the stacks never change. Null creates one. Fixed at
    creation."""
    access: list[AccessEntry] = Field(default=[])
    """Roles and users that may use the cluster in addition to the stacks. Without an entry, no one may."""
    entries_in_cluster_stack: Annotated[int, Field(ge=FIRST_ENTRIES)] = FIRST_ENTRIES
    """Entries of ``access``, from the first on, in the cluster's own stack; nested stacks have the others.
    Raise it only for a cluster whose own stack has more, because an earlier version deployed them there."""

    @property
    def admitted(self) -> list[AccessEntry]:
        """Entries of the roles and users that have access."""
        return [entry for entry in self.access if entry.has_access]
