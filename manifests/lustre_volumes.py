"""Kubernetes objects by which pods see the Lustre file system."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from config.resource_names import LUSTRE_CLAIM, LUSTRE_STORAGE_CLASS, TRAINING_UID, job_folder

DRIVER = "fsx.csi.aws.com"
SYSTEM_NAMESPACE = "kube-system"
# Docker's official image as Amazon ECR Public has it, by the digest of all architectures.
SHELL_IMAGE = (
    "public.ecr.aws/docker/library/busybox:1.37.0@sha256:"
    "bdf57e528e45e4433820e045b29b4597825a1c9e38353532d90a01445013f82e"
)


@dataclass(frozen=True)
class LustreVolume:
    """What a pod's node must know to mount the file system."""

    file_system_id: str
    dns_name: str
    mount_name: str
    capacity_gib: int


def storage_class() -> dict[str, Any]:
    """Names the volumes' kind; nothing is made by it."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": LUSTRE_STORAGE_CLASS},
        "provisioner": DRIVER,
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "Immediate",
    }


def persistent_volume(volume: LustreVolume, namespace: str) -> dict[str, Any]:
    """The whole file system, for the one claim of a namespace.

    The driver takes the handle for a key alone, which must be another for each volume (``node.go`` of
    aws-fsx-csi-driver), and mounts what the attributes say.
    """
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume_name(namespace)},
        "spec": {
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
        },
    }


def persistent_volume_claim(volume: LustreVolume, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": LUSTRE_CLAIM, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": LUSTRE_STORAGE_CLASS,
            "volumeName": volume_name(namespace),
            "resources": {"requests": {"storage": f"{volume.capacity_gib}Gi"}},
        },
    }


def volume_name(namespace: str) -> str:
    return f"fsx-{namespace}"


def folder_job(namespaces: Sequence[str]) -> dict[str, Any]:
    """A job that gives each namespace's folder to the user of the training image, which is not root.

    Only root may make folders in the file system's own. A job cannot be changed: its name has a hash of what
    it does, so that more namespaces are another job.
    """
    folders = " ".join(f"/fsx/{job_folder(namespace)}" for namespace in namespaces)
    owner = f"{TRAINING_UID}:{TRAINING_UID}"
    spec: dict[str, Any] = {
        "backoffLimit": 10,
        "template": {
            "spec": {
                "restartPolicy": "OnFailure",
                "automountServiceAccountToken": False,
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": "folders",
                        "image": SHELL_IMAGE,
                        "command": ["sh", "-euc"],
                        # Not what lies in them: a folder that is there may hold terabytes.
                        "args": [f"mkdir -p {folders} && chown {owner} {folders} && chmod 0750 {folders}"],
                        "securityContext": {
                            "runAsUser": 0,
                            "allowPrivilegeEscalation": False,
                            "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "FOWNER", "DAC_OVERRIDE"]},
                        },
                        "resources": {
                            "requests": {"cpu": "50m", "memory": "32Mi"},
                            "limits": {"memory": "64Mi"},
                        },
                        "volumeMounts": [{"name": "fsx", "mountPath": "/fsx"}],
                    }
                ],
                "volumes": [{"name": "fsx", "persistentVolumeClaim": {"claimName": LUSTRE_CLAIM}}],
            }
        },
    }
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"lustre-folders-{digest}", "namespace": SYSTEM_NAMESPACE},
        "spec": spec,
    }
