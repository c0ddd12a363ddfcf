"""Kubernetes objects by which pods see the Lustre file system."""

from collections.abc import Sequence
from dataclasses import dataclass

from config.resource_names import LUSTRE_CLAIM, LUSTRE_STORAGE_CLASS, TRAINING_UID
from manifests.objects import ROOT_SECURITY, Object, folder_pod, job, kubernetes_object

DRIVER = "fsx.csi.aws.com"
# Docker's official image as Amazon ECR Public has it, by the digest of all architectures.
SHELL_IMAGE = (
    "public.ecr.aws/docker/library/busybox:1.37.0@sha256:"
    "bdf57e528e45e4433820e045b29b4597825a1c9e38353532d90a01445013f82e"
)


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
        "securityContext": ROOT_SECURITY,
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
        "volumeMounts": [{"name": "fsx", "mountPath": "/fsx"}],
    }
    pod = folder_pod(container, [{"name": "fsx", "persistentVolumeClaim": {"claimName": LUSTRE_CLAIM}}])
    return job("lustre-folders", {"backoffLimit": 10, "template": {"spec": pod}})
