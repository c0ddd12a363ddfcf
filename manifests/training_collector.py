"""Kubernetes objects that collect the metrics of trainings: a Prometheus agent in one small pod.

HyperPod's observability add-on can scrape only services (``customServiceScrapeTargets``), and a service would
select one of several trainings at random. AWS's managed collector finds pods, but cannot write to a workspace
with a customer's key (user guide of Managed Prometheus, "managed collectors").
"""

import hashlib
import json
from collections.abc import Sequence

from config.eks_cluster import EksCluster
from config.resource_names import job_namespaces
from manifests.objects import RBAC, Object, kubernetes_object, namespace_of
from manifests.public_images import PROMETHEUS

NAME = "training-metrics"
"""Name of all objects."""
NAMESPACE = NAME
CONFIG_FILE = "prometheus.yml"
PORT = 9090
USER = 65534
"""User of the image."""
_CONFIG_FOLDER = "/etc/prometheus"
_DATA_FOLDER = "/prometheus"


def collector_objects(
    cluster: EksCluster, namespaces: Sequence[str], *, remote_write_url: str
) -> list[Object]:
    """Return the objects in the order of their creation.

    Args:
        cluster: cluster of the jobs, all of whose namespaces the agent watches.
        namespaces: namespaces of jobs that exist already; the agent waits for access to the others.
        remote_write_url: address of the workspace.
    """
    # Prometheus reads YAML, of which JSON is a subset.
    config = json.dumps(agent_config(cluster, remote_write_url=remote_write_url), indent=1)
    # The address exists only at deployment, so the hash of the configuration is without it.
    without_address = json.dumps(agent_config(cluster, remote_write_url=""), sort_keys=True)
    digest = hashlib.sha256(without_address.encode()).hexdigest()[:16]
    read_pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    return [
        namespace_of(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"}),
        kubernetes_object("v1", "ServiceAccount", NAME, NAMESPACE),
        kubernetes_object(f"{RBAC}/v1", "ClusterRole", NAME, rules=[read_pods]),
        *collector_bindings(namespaces),
        kubernetes_object("v1", "ConfigMap", NAME, NAMESPACE, data={CONFIG_FILE: config}),
        _deployment(digest),
    ]


def collector_bindings(namespaces: Sequence[str]) -> list[Object]:
    """Return the bindings with which the agent may read pods, only in the namespaces of jobs."""
    return [
        kubernetes_object(
            f"{RBAC}/v1",
            "RoleBinding",
            NAME,
            namespace,
            roleRef={"kind": "ClusterRole", "name": NAME, "apiGroup": RBAC},
            subjects=[{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
        )
        for namespace in namespaces
    ]


def agent_config(cluster: EksCluster, *, remote_write_url: str) -> Object:
    """Return the configuration of Prometheus.

    All pods of a job declare the port, but only the first one listens on it.
    """

    def keep(label: str, value: str) -> Object:
        """Return the rule that keeps pods for which a label has a value."""
        return {
            "action": "keep",
            "source_labels": [f"__meta_kubernetes_pod_{label}"],
            "regex": value,
        }

    def label(name: str, source: str) -> Object:
        """Return the rule that copies a property of the pod to a label of its metrics."""
        return {"source_labels": [f"__meta_kubernetes_{source}"], "target_label": name}

    return {
        "global": {
            "scrape_interval": "30s",
            "scrape_timeout": "25s",
            "external_labels": {"cluster": cluster.name},
        },
        "scrape_configs": [
            {
                "job_name": "training",
                # Processes of users report the metrics, so their number is limited. A training has about 60.
                "sample_limit": 500,
                "kubernetes_sd_configs": [
                    {"role": "pod", "namespaces": {"names": job_namespaces(cluster)}}
                ],
                "relabel_configs": [
                    keep("label_app_kubernetes_io_name", "esm2"),
                    keep("container_port_name", "metrics"),
                    keep("phase", "Running"),
                    label("namespace", "namespace"),
                    label("pod", "pod_name"),
                    label("instance", "pod_node_name"),
                ],
            }
        ],
        "remote_write": [
            {
                "url": remote_write_url,
                "sigv4": {"region": cluster.region},
                # Values that Amazon Managed Service for Prometheus recommends.
                "queue_config": {"max_samples_per_send": 1000, "max_shards": 200, "capacity": 2500},
            }
        ],
    }


def _deployment(digest: str) -> Object:
    """Return the deployment of the agent; a new digest of the configuration starts a new pod."""
    labels = {"app.kubernetes.io/name": NAME}
    ready = {
        "httpGet": {"path": "/-/ready", "port": PORT},
        "periodSeconds": 10,
        "timeoutSeconds": 5,
    }
    container = {
        "name": "prometheus",
        "image": PROMETHEUS.reference,
        "args": [
            "--agent",
            f"--config.file={_CONFIG_FOLDER}/{CONFIG_FILE}",
            f"--storage.agent.path={_DATA_FOLDER}",
            # Limit for samples that could not be written to the workspace yet.
            "--storage.agent.retention.max-time=4h",
            f"--web.listen-address=:{PORT}",
        ],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": ready,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"memory": "512Mi", "ephemeral-storage": "2Gi"},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": _CONFIG_FOLDER, "readOnly": True},
            {"name": "data", "mountPath": _DATA_FOLDER},
        ],
    }
    pod = {
        "serviceAccountName": NAME,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": NAME}},
            {"name": "data", "emptyDir": {"sizeLimit": "2Gi"}},
        ],
    }
    spec = {
        "replicas": 1,
        # Two pods at a time would send the same samples.
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels, "annotations": {"training-metrics/config": digest}},
            "spec": pod,
        },
    }
    return kubernetes_object("apps/v1", "Deployment", NAME, NAMESPACE, spec=spec)
