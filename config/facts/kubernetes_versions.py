"""Kubernetes versions that a cluster file may request, and the end of their support.

The dates are those of the EKS user guide, "Understand the Kubernetes version lifecycle". EKS bills extended
support in addition to the control plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from config.kubernetes import Version


@dataclass(frozen=True)
class KubernetesVersion:
    kube_proxy: str
    """Version of the add-on kube-proxy, which follows the control plane's."""
    end_of_standard_support: date
    end_of_extended_support: date


KUBERNETES_VERSIONS: dict[Version, KubernetesVersion] = {
    "1.33": KubernetesVersion("v1.33.5-eksbuild.2", date(2026, 7, 29), date(2027, 7, 29)),
    "1.34": KubernetesVersion("v1.34.1-eksbuild.2", date(2026, 12, 2), date(2027, 12, 2)),
}
