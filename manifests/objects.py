"""Kubernetes objects: what all have at their head, and jobs that make folders of the file system as root."""

import hashlib
import json
from typing import Any

Object = dict[str, Any]

RBAC = "rbac.authorization.k8s.io"
SYSTEM_NAMESPACE = "kube-system"
ROOT_SECURITY = {
    "runAsUser": 0,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "FOWNER", "DAC_OVERRIDE"]},
}
"""Security context of a container that makes folders and gives them away."""


def kubernetes_object(
    version: str, kind: str, name: str, namespace: str | None = None, **content: object
) -> Object:
    """An object; ``content`` is what it has beside its head, as ``spec``."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def namespace_of(name: str, labels: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def folder_pod(container: Object, volumes: list[Object]) -> Object:
    """The pod of a job that makes folders; it has no rights in Kubernetes."""
    return {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
    }


def job(prefix: str, spec: Object) -> Object:
    """A job of the system. A job cannot be changed: its name has a hash of what it does."""
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    return kubernetes_object("batch/v1", "Job", f"{prefix}-{digest}", SYSTEM_NAMESPACE, spec=spec)
