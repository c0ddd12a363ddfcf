"""Kubernetes objects by which pods see the Lustre file system, and jobs that make folders in it as root."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from config.resource_names import LUSTRE_CLAIM, LUSTRE_STORAGE_CLASS, TRAINING_UID
from config.studio import STUDIO_FOLDER
from manifests.objects import SYSTEM_NAMESPACE, Object, kubernetes_object

DRIVER = "fsx.csi.aws.com"
# Docker's official image as Amazon ECR Public has it, by the digest of all architectures.
SHELL_IMAGE = (
    "public.ecr.aws/docker/library/busybox:1.37.0@sha256:"
    "bdf57e528e45e4433820e045b29b4597825a1c9e38353532d90a01445013f82e"
)
STUDIO_JOBS = "studio-partitions"
STUDIO_PROGRAM = Path(__file__).parents[1] / "lifecycle" / "slurm" / "studio" / "partitions.py"
"""The same as on Slurm's controller."""
# AWS's own image of its command, on Amazon Linux 2023, whose package manager brings Python 3.9; by the digest
# of all architectures.
STUDIO_IMAGE = (
    "public.ecr.aws/aws-cli/aws-cli:2.37.4@sha256:"
    "fdd8d1fcbea9c371678dee5a40df8b178c7a781b4586605756ee28114c97ead6"
)
EVERY_MINUTES = 5
SECONDS_PER_RUN = 1800
"""A partition that is removed may hold much."""
_ROOT_SECURITY = {
    "runAsUser": 0,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "FOWNER", "DAC_OVERRIDE"]},
}
"""Security context of a container that makes folders and gives them away."""


@dataclass(frozen=True)
class LustreVolume:
    """Values that a pod's node needs to mount the file system."""

    file_system_id: str
    dns_name: str
    mount_name: str
    capacity_gib: int


def storage_class() -> Object:
    """Names the volumes' kind; nothing is made by it."""
    return kubernetes_object(
        "storage.k8s.io/v1",
        "StorageClass",
        LUSTRE_STORAGE_CLASS,
        provisioner=DRIVER,
        reclaimPolicy="Retain",
        volumeBindingMode="Immediate",
    )


def persistent_volume(volume: LustreVolume, namespace: str) -> Object:
    """The whole file system, for the one claim of a namespace.

    The driver takes the handle for a key alone, which must be another for each volume (``node.go`` of
    aws-fsx-csi-driver), and mounts what the attributes say.
    """
    spec = {
        "capacity": {"storage": f"{volume.capacity_gib}Gi"},
        "volumeMode": "Filesystem",
        "accessModes": ["ReadWriteMany"],
        "mountOptions": ["flock"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": LUSTRE_STORAGE_CLASS,
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": namespace,
            "name": LUSTRE_CLAIM,
        },
        "csi": {
            "driver": DRIVER,
            "volumeHandle": f"{volume.file_system_id}/{namespace}",
            "volumeAttributes": {"dnsname": volume.dns_name, "mountname": volume.mount_name},
        },
    }
    return kubernetes_object("v1", "PersistentVolume", volume_name(namespace), spec=spec)


def persistent_volume_claim(volume: LustreVolume, namespace: str) -> Object:
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": LUSTRE_STORAGE_CLASS,
        "volumeName": volume_name(namespace),
        "resources": {"requests": {"storage": f"{volume.capacity_gib}Gi"}},
    }
    return kubernetes_object("v1", "PersistentVolumeClaim", LUSTRE_CLAIM, namespace, spec=spec)


def volume_name(namespace: str) -> str:
    return f"fsx-{namespace}"


def folder_job(namespaces: Sequence[str]) -> Object:
    """A job that gives each namespace's folder to the user of the training image, which is not root.

    Only root may make folders in the file system's own. More namespaces are another job.
    """
    folders = " ".join(f"/fsx/{namespace}" for namespace in namespaces)
    owner = f"{TRAINING_UID}:{TRAINING_UID}"
    container = {
        "name": "folders",
        "image": SHELL_IMAGE,
        "command": ["sh", "-euc"],
        # Not their contents: an existing folder may hold terabytes.
        "args": [f"mkdir -p {folders} && chown {owner} {folders} && chmod 0750 {folders}"],
        "securityContext": _ROOT_SECURITY,
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
        "volumeMounts": [{"name": "fsx", "mountPath": "/fsx"}],
    }
    pod = _folder_pod(container, [{"name": "fsx", "persistentVolumeClaim": {"claimName": LUSTRE_CLAIM}}])
    return _job("lustre-folders", {"backoffLimit": 10, "template": {"spec": pod}})


def _folder_pod(container: Object, volumes: list[Object]) -> Object:
    """The pod of a job that makes folders; it has no rights in Kubernetes."""
    return {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
    }


def _job(prefix: str, spec: Object) -> Object:
    """A job of the system. A job cannot be changed: its name has a hash of what it does."""
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    return kubernetes_object("batch/v1", "Job", f"{prefix}-{digest}", SYSTEM_NAMESPACE, spec=spec)


def studio_service_account() -> Object:
    return kubernetes_object("v1", "ServiceAccount", STUDIO_JOBS, SYSTEM_NAMESPACE)


def studio_program() -> Object:
    """The program, by its contents: pods that run keep the one that they began with."""
    data = {STUDIO_PROGRAM.name: STUDIO_PROGRAM.read_text()}
    return kubernetes_object("v1", "ConfigMap", _program_name(), SYSTEM_NAMESPACE, immutable=True, data=data)


def studio_queue_job(requests_url: str, acknowledgements_url: str, region: str) -> Object:
    """Answers, every few minutes and one at a time, what has been queued; ends when nothing is left."""
    queues = ["--requests", requests_url, "--acknowledgements", acknowledgements_url, "--region", region]
    spec = {
        "schedule": f"*/{EVERY_MINUTES} * * * *",
        "concurrencyPolicy": "Forbid",
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 3,
        "jobTemplate": {"spec": _spec(["drain", *queues], {"serviceAccountName": STUDIO_JOBS})},
    }
    return kubernetes_object("batch/v1", "CronJob", STUDIO_JOBS, SYSTEM_NAMESPACE, spec=spec)


def studio_shared_job(uids: Sequence[int]) -> Object:
    """Makes the partition that all spaces share, once; another list of users is another job."""
    return _job("studio-shared", _spec(["shared", "--uids", ",".join(map(str, uids))], {}))


def _program_name() -> str:
    return f"{STUDIO_JOBS}-{hashlib.sha256(STUDIO_PROGRAM.read_bytes()).hexdigest()[:8]}"


def _spec(arguments: Sequence[str], account: Object) -> Object:
    root = f"/{STUDIO_FOLDER}"
    container = {
        "name": "partitions",
        "image": STUDIO_IMAGE,
        "command": ["python3", f"/program/{STUDIO_PROGRAM.name}"],
        "args": [arguments[0], "--root", root, *arguments[1:]],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "AWS_PAGER", "value": ""}],
        "securityContext": _ROOT_SECURITY,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": [
            # Only this folder of the file system, which is created if it does not exist.
            {"name": "fsx", "mountPath": root, "subPath": STUDIO_FOLDER},
            {"name": "program", "mountPath": "/program", "readOnly": True},
            {"name": "temporary", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        {"name": "fsx", "persistentVolumeClaim": {"claimName": LUSTRE_CLAIM}},
        {"name": "program", "configMap": {"name": _program_name()}},
        {"name": "temporary", "emptyDir": {"sizeLimit": "64Mi"}},
    ]
    pod = _folder_pod(container, volumes) | account
    return {"backoffLimit": 3, "activeDeadlineSeconds": SECONDS_PER_RUN, "template": {"spec": pod}}
