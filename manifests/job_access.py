"""Kubernetes roles and groups of people: jobs of operators, and the queues that these are placed from.

EKS's access policies cover Kubernetes's own objects; jobs of operators are none of them.
"""

from config.eks_cluster import EksCluster
from config.kubernetes import AccessEntry
from config.resource_names import job_namespaces
from manifests.objects import RBAC, Object, kubernetes_object

EDITORS, VIEWERS = "training-job-editors", "training-job-viewers"
_GROUPS = {"admin": EDITORS, "edit": EDITORS, "view": VIEWERS}
_READ = ["get", "list", "watch"]
_WRITE = [*_READ, "create", "update", "patch", "delete"]
_JOBS = (("sagemaker.amazonaws.com", "hyperpodpytorchjobs"), ("kubeflow.org", "pytorchjobs"))
QUEUE_READERS = "training-queue-readers"


def job_roles(cluster: EksCluster) -> list[Object]:
    """Roles of editors and viewers of training jobs, bound in every namespace of jobs."""
    namespaces = job_namespaces(cluster)
    everyone = [
        group
        for kind in (EDITORS, VIEWERS)
        for group in dict.fromkeys(group for namespace in namespaces for group in groups_in(namespace, kind))
    ]
    queues = _rule("kueue.x-k8s.io", ["clusterqueues", "workloadpriorityclasses"], _READ)
    return [
        _role(EDITORS, _job_rules(_WRITE)),
        _role(VIEWERS, _job_rules(_READ)),
        _role(QUEUE_READERS, [queues]),
        _binding("ClusterRoleBinding", QUEUE_READERS, everyone),
        *(
            _binding("RoleBinding", kind, groups_in(namespace, kind), namespace)
            for namespace in namespaces
            for kind in (EDITORS, VIEWERS)
        ),
    ]


def _job_rules(verbs: list[str]) -> list[Object]:
    rules = [
        rule
        for group, resource in _JOBS
        for rule in (_rule(group, [resource], verbs), _rule(group, [f"{resource}/status"], _READ))
    ]
    return [*rules, _rule("kueue.x-k8s.io", ["localqueues", "workloads"], _READ)]


def _rule(group: str, resources: list[str], verbs: list[str]) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _role(name: str, rules: list[Object]) -> Object:
    return kubernetes_object(f"{RBAC}/v1", "ClusterRole", name, rules=rules)


def _binding(kind: str, role: str, groups: list[str], namespace: str | None = None) -> Object:
    return kubernetes_object(
        f"{RBAC}/v1",
        kind,
        role,
        namespace,
        roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        subjects=[{"apiGroup": RBAC, "kind": "Group", "name": group} for group in groups],
    )


def job_groups(entry: AccessEntry) -> list[str]:
    """Return one group for each namespace of a principal; none for an administrator, who may do all."""
    group = _GROUPS.get(entry.level)
    if group is None:
        return []
    return [f"{group}:{namespace}" for namespace in entry.namespaces] or [group]


def groups_in(namespace: str, group: str) -> list[str]:
    """Return the groups that belong to ``group`` (EDITORS or VIEWERS) in a namespace."""
    return [group, f"{group}:{namespace}"]
