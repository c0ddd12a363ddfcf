"""Manifests of a service on Kubernetes: pods that serve a model under one name within the cluster."""

from collections.abc import Mapping
from dataclasses import dataclass

from .pod_job import (
    TEMPORARY_FOLDER,
    VERSION_ANNOTATION,
    Manifest,
    PodSettings,
    container_base,
    pod_base,
)

PORT = 8080
"""Port of the server in a pod."""
SERVICE_PORT = 80
"""Port of the service."""
MODEL_FOLDER = "/opt/ml/model"
"""Folder of the model in a pod. SageMaker uses it, and it is the server's default."""
ENDPOINT_LABEL = "esm2/endpoint"
STARTUP_SECONDS = 10
"""Time between two probes while the server starts."""
PROBE_SECONDS = 2
"""Time limit of a probe, and the time between two probes of readiness."""
LIVENESS_SECONDS = 10
"""Time between two probes of a server that has started."""
ROLLOUT_SECONDS = 300
"""Time for a new pod to be scheduled and to pull the image, before its server starts."""
STOP_SECONDS = 10
"""Time that the server needs to end, in addition to draining and the last answers."""


@dataclass(frozen=True, kw_only=True)
class PodService(PodSettings):
    """Service of a model."""

    model: str
    """Folder of the model below the file system's root, without a slash before it."""
    environment: Mapping[str, str]
    """Environment of the server, with its limits."""
    replicas: int
    """Number of pods."""
    startup_seconds: int
    """Longest time for the server to start."""
    drain_seconds: int
    """Time in which a pod that ends still gets requests."""
    timeout_seconds: int
    """Time limit of a request."""


def manifests(service: PodService) -> list[Manifest]:
    """Return the manifests in the order of their creation. The network policy comes before the pods."""
    selector = _selector(service)
    labels = {"app.kubernetes.io/name": "esm2", ENDPOINT_LABEL: service.name}
    metadata = {"name": service.name, "namespace": service.namespace, "labels": labels}
    # Pods of the namespace may connect to the port. The server may not connect to anything, as on SageMaker.
    policy = {
        "podSelector": selector,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": PORT, "protocol": "TCP"}]}],
        "egress": [],
    }
    # Nodes that are drained evict one pod at a time.
    budget = {"maxUnavailable": 1, "selector": selector}
    address = {
        "type": "ClusterIP",
        "selector": {ENDPOINT_LABEL: service.name},
        "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": "http", "protocol": "TCP"}],
    }
    # Each pod waits in the queue by itself.
    queued = labels | service.placement.queue_labels()
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
    """Return the selector of the service's pods."""
    return {"matchLabels": {ENDPOINT_LABEL: service.name}}


def _deployment(service: PodService, labels: dict[str, str]) -> Manifest:
    # A single pod is replaced after the new one has started. Of several pods, one ends before its replacement
    # starts, so that no spare GPU is needed.
    is_single = service.replicas == 1
    return {
        "replicas": service.replicas,
        "revisionHistoryLimit": 5,
        "progressDeadlineSeconds": service.startup_seconds + ROLLOUT_SECONDS,
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {
                "maxSurge": 1 if is_single else 0,
                "maxUnavailable": 0 if is_single else 1,
            },
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
            {
                "name": "model",
                "persistentVolumeClaim": {"claimName": service.claim, "readOnly": True},
            },
            {"name": "temporary", "emptyDir": {}},
        ],
    }


def _container(service: PodService) -> Manifest:
    sizes = service.resources.sizes_with_devices()
    variables = {
        # The root file system is read-only.
        "HOME": TEMPORARY_FOLDER,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(service.resources.num_cpus),
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
            {
                "name": "model",
                "mountPath": MODEL_FOLDER,
                "subPath": service.model,
                "readOnly": True,
            },
            {"name": "temporary", "mountPath": TEMPORARY_FOLDER},
        ],
        "startupProbe": {
            **ping,
            "periodSeconds": STARTUP_SECONDS,
            "failureThreshold": -(-service.startup_seconds // STARTUP_SECONDS),
        },
        # A server that drains gets no more requests at once. One that fails is restarted only after a minute.
        "readinessProbe": {**ping, "periodSeconds": PROBE_SECONDS, "failureThreshold": 1},
        "livenessProbe": {**ping, "periodSeconds": LIVENESS_SECONDS, "failureThreshold": 6},
    }
