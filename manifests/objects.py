"""Kubernetes objects with their common fields."""

from typing import Any

Object = dict[str, Any]
"""Kubernetes object, or a part of one."""

RBAC = "rbac.authorization.k8s.io"
SYSTEM_NAMESPACE = "kube-system"


def kubernetes_object(
    version: str, kind: str, name: str, namespace: str | None = None, **content: object
) -> Object:
    """Return an object.

    Args:
        version: API version.
        kind: kind of the object.
        name: name of the object.
        namespace: namespace of the object; None for objects of the whole cluster.
        content: remaining fields, such as ``spec``.
    """
    metadata = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def namespace_of(name: str, labels: Object) -> Object:
    """Return a namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
