"""Kubernetes groups of the people in a cluster file, which training jobs are opened to.

EKS's access policies cover Kubernetes's own objects; jobs of operators are none of them.
"""

from __future__ import annotations

from config.kubernetes import AccessEntry

EDITORS, VIEWERS = "training-job-editors", "training-job-viewers"
_GROUPS = {"admin": EDITORS, "edit": EDITORS, "view": VIEWERS}


def job_groups(entry: AccessEntry) -> list[str]:
    """Groups of a principal, one for each of its namespaces; none for an administrator, who may do all."""
    group = _GROUPS.get(entry.level)
    if group is None:
        return []
    return [f"{group}:{namespace}" for namespace in entry.namespaces] or [group]


def groups_in(namespace: str, group: str) -> list[str]:
    """The groups of which ``group`` (EDITORS or VIEWERS) consists in a namespace."""
    return [group, f"{group}:{namespace}"]
