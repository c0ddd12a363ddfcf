"""Kubernetes roles and groups of people: jobs of operators, and the queues that these are placed from.

EKS's access policies cover Kubernetes's own objects; jobs of operators are none of them.
"""

from __future__ import annotations

from typing import Any

from config.eks_cluster import EksCluster
from config.kubernetes import AccessEntry
from config.resource_names import job_namespaces

EDITORS, VIEWERS = "training-job-editors", "training-job-viewers"
_GROUPS = {"admin": EDITORS, "edit": EDITORS, "view": VIEWERS}
_RBAC = "rbac.authorization.k8s.io"
_READ = ["get", "list", "watch"]
_WRITE = [*_READ, "create", "update", "patch", "delete"]
_JOBS = (("sagemaker.amazonaws.com", "hyperpodpytorchjobs"), ("kubeflow.org", "pytorchjobs"))
QUEUE_READERS = "training-queue-readers"


def job_roles(cluster: EksCluster) -> list[dict[str, Any]]:
    """Roles of editors and viewers of training jobs, bound in every namespace of jobs."""
    namespaces = job_namespaces(cluster)
    everyone = [
        group
        for kind in (EDITORS, VIEWERS)
        for group in dict.fromkeys(group for namespace in namespaces for group in groups_in(namespace, kind))
    ]
    return [
        _role(EDITORS, _WRITE),
        _role(VIEWERS, _READ),
        {
            **_head("ClusterRole", QUEUE_READERS),
            "rules": [_rule("kueue.x-k8s.io", ["clusterqueues", "workloadpriorityclasses"], _READ)],
        },
        {**_head("ClusterRoleBinding", QUEUE_READERS), **_bound(QUEUE_READERS, everyone)},
        *(
            {**_head("RoleBinding", kind, namespace), **_bound(kind, groups_in(namespace, kind))}
            for namespace in namespaces
            for kind in (EDITORS, VIEWERS)
        ),
    ]


def _role(name: str, verbs: list[str]) -> dict[str, Any]:
    rules = [
        rule
        for group, resource in _JOBS
        for rule in (_rule(group, [resource], verbs), _rule(group, [f"{resource}/status"], _READ))
    ]
    return {
        **_head("ClusterRole", name),
        "rules": [*rules, _rule("kueue.x-k8s.io", ["localqueues", "workloads"], _READ)],
    }


def _rule(group: str, resources: list[str], verbs: list[str]) -> dict[str, list[str]]:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _head(kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata}


def _bound(role: str, groups: list[str]) -> dict[str, Any]:
    return {
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "Group", "name": group} for group in groups],
    }


def job_groups(entry: AccessEntry) -> list[str]:
    """Groups of a principal, one for each of its namespaces; none for an administrator, who may do all."""
    group = _GROUPS.get(entry.level)
    if group is None:
        return []
    return [f"{group}:{namespace}" for namespace in entry.namespaces] or [group]


def groups_in(namespace: str, group: str) -> list[str]:
    """The groups of which ``group`` (EDITORS or VIEWERS) consists in a namespace."""
    return [group, f"{group}:{namespace}"]
