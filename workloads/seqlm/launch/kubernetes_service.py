"""A model served by pods of Kubernetes, behind one name inside of the cluster."""

from collections.abc import Mapping
from dataclasses import dataclass

from .pod_job import TEMPORARY_FOLDER, VERSION_ANNOTATION, Manifest, PodSettings, container_base, pod_base

PORT, SERVICE_PORT = 8080, 80
MODEL_FOLDER = "/opt/ml/model"
"""SageMaker's place, which the server has for its default."""
ENDPOINT_LABEL = "esm2/endpoint"
STARTUP_SECONDS, PROBE_SECONDS = 10, 2
STOP_SECONDS = 10
"""Seconds that the server needs in addition to draining and the last answers."""


@dataclass(frozen=True, kw_only=True)
class PodService(PodSettings):
    model: str
    """Folder of the model below the file system's root, without a slash before it."""
    environment: Mapping[str, str]
    """Limits of the server."""
    replicas: int
    startup_seconds: int
    drain_seconds: int
    timeout_seconds: int


def manifests(service: PodService) -> list[Manifest]:
    """Return manifests in the order of their creation: who may reach pods is settled before there are any."""
    selector = _selector(service)
    labels = {"app.kubernetes.io/name": "esm2", ENDPOINT_LABEL: service.name}
    metadata = {"name": service.name, "namespace": service.namespace, "labels": labels}
    # Pods of the namespace reach the port; the server itself reaches nothing, as on SageMaker.
    policy = {
        "podSelector": selector,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": PORT, "protocol": "TCP"}]}],
        "egress": [],
    }
    # When nodes are drained, one pod at a time.
    budget = {"maxUnavailable": 1, "selector": selector}
    address = {
        "type": "ClusterIP",
        "selector": {ENDPOINT_LABEL: service.name},
        "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    # Each pod stands in the queue by itself.
    queued = labels | service.queue_labels()
    annotated = metadata | {"labels": queued, "annotations": {VERSION_ANNOTATION: service.version}}
    kinds = (
        ("networking.k8s.io/v1", "NetworkPolicy", metadata, policy),
        ("policy/v1", "PodDisruptionBudget", metadata, budget),
        ("v1", "Service", metadata, address),
        ("apps/v1", "Deployment", annotated, _deployment(service, queued)),
    )
    return [
        {"apiVersion": version, "kind": kind, "metadata": about, "spec": spec}
        for version, kind, about, spec in kinds
    ]


def _selector(service: PodService) -> Manifest:
    return {"matchLabels": {ENDPOINT_LABEL: service.name}}


def _deployment(service: PodService, labels: dict[str, str]) -> Manifest:
    # A single pod is replaced by one beside it; several one after the other, so that no GPU must be spare.
    alone = service.replicas == 1
    return {
        "replicas": service.replicas,
        "revisionHistoryLimit": 5,
        "progressDeadlineSeconds": service.startup_seconds + 300,
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1 if alone else 0, "maxUnavailable": 0 if alone else 1},
        },
        "selector": _selector(service),
        "template": {"metadata": {"labels": labels}, "spec": _pod(service)},
    }


def _pod(service: PodService) -> Manifest:
    return {
        **pod_base(service, service.drain_seconds + service.timeout_seconds + STOP_SECONDS),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": _selector(service),
            }
        ],
        "containers": [_container(service)],
        "volumes": [
            {"name": "model", "persistentVolumeClaim": {"claimName": service.claim, "readOnly": True}},
            {"name": "temporary", "emptyDir": {}},
        ],
    }


def _container(service: PodService) -> Manifest:
    sizes = {"cpu": str(service.num_cpus), "memory": f"{service.memory_gib}Gi"}
    if service.num_gpus:
        sizes["nvidia.com/gpu"] = str(service.num_gpus)
    variables = {
        # The root file system is read-only.
        "HOME": TEMPORARY_FOLDER,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(service.num_cpus),
        **service.environment,
    }
    ping = {"httpGet": {"path": "/ping", "port": "http"}, "timeoutSeconds": PROBE_SECONDS}
    return {
        "name": "server",
        **container_base(service),
        "command": ["serve"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": {"requests": sizes, "limits": sizes},
        "volumeMounts": [
            {"name": "model", "mountPath": MODEL_FOLDER, "subPath": service.model, "readOnly": True},
            {"name": "temporary", "mountPath": TEMPORARY_FOLDER},
        ],
        "startupProbe": {
            **ping,
            "periodSeconds": STARTUP_SECONDS,
            "failureThreshold": -(-service.startup_seconds // STARTUP_SECONDS),
        },
        # Draining is detected at once. A failing model is restarted only if it continues to fail.
        "readinessProbe": {**ping, "periodSeconds": PROBE_SECONDS, "failureThreshold": 1},
        "livenessProbe": {**ping, "periodSeconds": 10, "failureThreshold": 6},
    }
