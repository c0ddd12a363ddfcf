"""Kubernetes objects: what all have at their head."""

from typing import Any

Object = dict[str, Any]

RBAC = "rbac.authorization.k8s.io"
SYSTEM_NAMESPACE = "kube-system"


def kubernetes_object(
    version: str, kind: str, name: str, namespace: str | None = None, **content: object
) -> Object:
    """An object; ``content`` is what it has beside its head, as ``spec``."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def namespace_of(name: str, labels: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
