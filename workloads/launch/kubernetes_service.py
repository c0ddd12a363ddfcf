"""A model served by pods of Kubernetes, behind one name inside of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .pod_job import HEALTH_LABEL, VERSION_ANNOTATION, Manifest, PodSettings
from .pod_template import TEMPORARY_FOLDER, container_security, pod_security

PORT, SERVICE_PORT = 8080, 80
MODEL_FOLDER = "/opt/ml/model"
"""SageMaker's place, which the server has for its default."""
ENDPOINT_LABEL = "esm2/endpoint"
STARTUP_SECONDS, PROBE_SECONDS = 10, 2
STOP_SECONDS = 10
"""What the server needs beside draining and the last answers."""


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
    """In the order in which they are made: who may reach pods is settled before there are any."""
    return [_network_policy(service), _disruption_budget(service), _service(service), _deployment(service)]


def _metadata(service: PodService) -> Manifest:
    return {"name": service.name, "namespace": service.namespace, "labels": _labels(service)}


def _labels(service: PodService) -> dict[str, str]:
    return {"app.kubernetes.io/name": "esm2", ENDPOINT_LABEL: service.name}


def _selector(service: PodService) -> Manifest:
    return {"matchLabels": {ENDPOINT_LABEL: service.name}}


def _service(service: PodService) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(service),
        "spec": {
            "type": "ClusterIP",
            "selector": {ENDPOINT_LABEL: service.name},
            "ports": [{"name": "http", "port": SERVICE_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _disruption_budget(service: PodService) -> Manifest:
    """When nodes are drained, one pod at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(service),
        "spec": {"maxUnavailable": 1, "selector": _selector(service)},
    }


def _network_policy(service: PodService) -> Manifest:
    """Pods of the namespace reach the port; the server itself reaches nothing, as on SageMaker."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(service),
        "spec": {
            "podSelector": _selector(service),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": PORT, "protocol": "TCP"}]}],
            "egress": [],
        },
    }


def _deployment(service: PodService) -> Manifest:
    # A single pod is replaced by one beside it; several one after the other, so that no GPU must be spare.
    alone = service.replicas == 1
    # Each pod stands in the queue by itself.
    labels = _labels(service) | service.queue_labels()
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            **_metadata(service),
            "labels": labels,
            "annotations": {VERSION_ANNOTATION: service.version},
        },
        "spec": {
            "replicas": service.replicas,
            "revisionHistoryLimit": 5,
            "progressDeadlineSeconds": service.startup_seconds + 300,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1 if alone else 0, "maxUnavailable": 0 if alone else 1},
            },
            "selector": _selector(service),
            "template": {"metadata": {"labels": labels}, "spec": _pod(service)},
        },
    }


def _pod(service: PodService) -> Manifest:
    grace = service.drain_seconds + service.timeout_seconds + STOP_SECONDS
    return {
        "terminationGracePeriodSeconds": grace,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(service.user),
        "nodeSelector": {HEALTH_LABEL: "Schedulable", **service.node_labels},
        "tolerations": [dict(toleration) for toleration in service.tolerations],
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
        "image": service.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["serve"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": {"requests": sizes, "limits": sizes},
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "model", "mountPath": MODEL_FOLDER, "subPath": service.model, "readOnly": True},
            {"name": "temporary", "mountPath": TEMPORARY_FOLDER},
        ],
        "startupProbe": {
            **ping,
            "periodSeconds": STARTUP_SECONDS,
            "failureThreshold": -(-service.startup_seconds // STARTUP_SECONDS),
        },
        # Draining is seen at once; a model that fails is restarted only when it goes on failing.
        "readinessProbe": {**ping, "periodSeconds": PROBE_SECONDS, "failureThreshold": 1},
        "livenessProbe": {**ping, "periodSeconds": 10, "failureThreshold": 6},
    }
