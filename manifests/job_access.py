"""Kubernetes roles and groups of users for the jobs of operators and their queues.

EKS's access policies cover only Kubernetes's own objects, which do not include jobs of operators.
"""

from collections.abc import Sequence

from config.kubernetes import AccessEntry
from manifests.objects import RBAC, Object, kubernetes_object

EDITORS = "training-job-editors"
"""Role and group of users that may create and change training jobs."""
VIEWERS = "training-job-viewers"
"""Role and group of users that may read training jobs."""
QUEUE_READERS = "training-queue-readers"
"""Role of users that may read queues and priorities, which belong to no namespace."""
_GROUPS = {"admin": EDITORS, "edit": EDITORS, "view": VIEWERS}
"""Groups by the level of an access entry."""
_READ = ["get", "list", "watch"]
_WRITE = [*_READ, "create", "update", "patch", "delete"]
_JOBS = {"sagemaker.amazonaws.com": "hyperpodpytorchjobs", "kubeflow.org": "pytorchjobs"}
"""Jobs of the two training operators by API group."""
_KUEUE = "kueue.x-k8s.io"


def job_roles(namespaces: Sequence[str]) -> list[Object]:
    """Return the roles of editors and viewers of training jobs, bound in these namespaces."""
    queues = _rule(_KUEUE, ["clusterqueues", "workloadpriorityclasses"], _READ)
    return [
        _role(EDITORS, _job_rules(_WRITE)),
        _role(VIEWERS, _job_rules(_READ)),
        _role(QUEUE_READERS, [queues]),
        *job_bindings(namespaces),
    ]


def job_bindings(namespaces: Sequence[str], *, suffix: str = "") -> list[Object]:
    """Return the bindings of the roles.

    Args:
        namespaces: namespaces of jobs.
        suffix: end of the name of the binding that belongs to no namespace.
    """
    everyone: list[str] = []
    for role in (EDITORS, VIEWERS):
        groups = [group for namespace in namespaces for group in groups_in(namespace, role)]
        # The group of all namespaces is repeated.
        everyone += dict.fromkeys(groups)
    bindings = [
        _binding("RoleBinding", role, groups_in(namespace, role), namespace)
        for namespace in namespaces
        for role in (EDITORS, VIEWERS)
    ]
    return [
        _binding("ClusterRoleBinding", QUEUE_READERS, everyone, suffix=suffix),
        *bindings,
    ]


def _job_rules(verbs: list[str]) -> list[Object]:
    """Return the rules for training jobs; their status and their queues can only be read."""
    rules: list[Object] = []
    for group, resource in _JOBS.items():
        rules.append(_rule(group, [resource], verbs))
        rules.append(_rule(group, [f"{resource}/status"], _READ))
    rules.append(_rule(_KUEUE, ["localqueues", "workloads"], _READ))
    return rules


def _rule(group: str, resources: list[str], verbs: list[str]) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _role(name: str, rules: list[Object]) -> Object:
    return kubernetes_object(f"{RBAC}/v1", "ClusterRole", name, rules=rules)


def _binding(
    kind: str, role: str, groups: list[str], namespace: str | None = None, *, suffix: str = ""
) -> Object:
    return kubernetes_object(
        f"{RBAC}/v1",
        kind,
        f"{role}{suffix}",
        namespace,
        roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        subjects=[{"apiGroup": RBAC, "kind": "Group", "name": group} for group in groups],
    )


def job_groups(entry: AccessEntry) -> list[str]:
    """Return one group for each namespace of a principal; administrators need none."""
    group = _GROUPS.get(entry.level)
    if group is None:
        return []
    return [f"{group}:{namespace}" for namespace in entry.namespaces] or [group]


def groups_in(namespace: str, group: str) -> list[str]:
    """Return the groups that belong to ``group`` (EDITORS or VIEWERS) in a namespace."""
    return [group, f"{group}:{namespace}"]
