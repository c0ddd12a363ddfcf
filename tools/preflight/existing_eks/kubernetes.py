"""Contents of an existing EKS cluster, as Kubernetes's API returns them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from config.eks_cluster import EksCluster
from tools.kubernetes.kubectl import Manifest, open_kubectl
from tools.preflight.read_only_aws import ReadOnlyAws

NAMESPACE = "kube-system"
BUILT_IN = ("v1", "apps/v1", "batch/v1", "storage.k8s.io/v1", "rbac.authorization.k8s.io/v1")
"""API versions that every cluster has."""


@dataclass(frozen=True)
class Workload:
    """DaemonSet or Deployment."""

    kind: str
    namespace: str
    name: str


def read_workloads(aws: ReadOnlyAws, cluster: EksCluster) -> list[Workload]:
    """Return the DaemonSets and Deployments of all namespaces.

    Raises:
        ValueError: if Kubernetes cannot be read, with the reason.
    """
    with open_kubectl(cluster, NAMESPACE, profile=aws.profile, kubeconfig=None) as kubectl:
        answer = kubectl.run("get", "daemonsets,deployments", "--all-namespaces", "--output=json")
    return [
        Workload(item["kind"], item["metadata"]["namespace"], item["metadata"]["name"])
        for item in json.loads(answer)["items"]
    ]


def read_same_objects(
    aws: ReadOnlyAws, cluster: EksCluster, objects: Sequence[Manifest]
) -> list[Manifest]:
    """Return the objects that have kind, namespace and name of one of ``objects``.

    Raises:
        ValueError: if Kubernetes cannot be read, with the reason.
    """
    wanted: dict[str, Any] = {"apiVersion": "v1", "kind": "List"}
    wanted["items"] = [found for found in objects if found["apiVersion"] in BUILT_IN]
    with open_kubectl(cluster, NAMESPACE, profile=aws.profile, kubeconfig=None) as kubectl:
        answer = kubectl.run(
            "get", "--filename=-", "--ignore-not-found", "--output=json", text=json.dumps(wanted)
        )
    if not answer.strip():
        return []
    found = json.loads(answer)
    items: list[Manifest] = found["items"] if found["kind"] == "List" else [found]
    return items
