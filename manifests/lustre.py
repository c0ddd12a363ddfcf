"""Kubernetes objects that give pods the Lustre file system, and jobs that create folders in it as root."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from config.resource_names import LUSTRE_CLAIM, LUSTRE_STORAGE_CLASS, TRAINING_UID
from config.studio import STUDIO_FOLDER
from manifests.objects import SYSTEM_NAMESPACE, Object, kubernetes_object
from manifests.public_images import AWS_CLI, SHELL

DRIVER = "fsx.csi.aws.com"
FOLDER_JOB = "lustre-folders"
"""Beginning of the names of the jobs that create folders of namespaces."""
HYPERPOD_NODES = {"sagemaker.amazonaws.com/compute-type": "hyperpod"}
"""Label that HyperPod gives to its nodes."""
STUDIO_JOBS = "studio-partitions"
"""Name of the job that creates and removes folders for Studio, and of its service account."""
STUDIO_PROGRAM = Path(__file__).parents[1] / "lifecycle" / "slurm" / "studio" / "partitions.py"
"""Program of that job, the same as on Slurm's controller."""
EVERY_MINUTES = 5
"""Interval of the job."""
SECONDS_PER_RUN = 1800
"""Time limit of a run, because a partition that is removed may contain many files."""
_ROOT_SECURITY = {
    "runAsUser": 0,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "FOWNER", "DAC_OVERRIDE"]},
}
"""Security context of a container that creates folders and changes their owner."""


@dataclass(frozen=True)
class LustreVolume:
    """Values that a node needs to mount the file system."""

    file_system_id: str
    dns_name: str
    mount_name: str
    capacity_gib: int


def storage_class() -> Object:
    """Return the storage class, which only names the kind of the volumes and provisions none."""
    return kubernetes_object(
        "storage.k8s.io/v1",
        "StorageClass",
        LUSTRE_STORAGE_CLASS,
        provisioner=DRIVER,
        reclaimPolicy="Retain",
        volumeBindingMode="Immediate",
    )


def persistent_volume(volume: LustreVolume, namespace: str) -> Object:
    """Return a volume of the whole file system for the claim of a namespace.

    The driver mounts the file system of the attributes. It uses the handle only as a key, which must be
    unique for each volume (``node.go`` of aws-fsx-csi-driver).
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
    """Return the claim of a namespace's volume."""
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": LUSTRE_STORAGE_CLASS,
        "volumeName": volume_name(namespace),
        "resources": {"requests": {"storage": f"{volume.capacity_gib}Gi"}},
    }
    return kubernetes_object("v1", "PersistentVolumeClaim", LUSTRE_CLAIM, namespace, spec=spec)


def volume_name(namespace: str) -> str:
    """Return the name of a namespace's volume."""
    return f"fsx-{namespace}"


def folder_job(
    namespaces: Sequence[str], node_labels: Mapping[str, str] = MappingProxyType({})
) -> Object:
    """Return a job that creates a folder per namespace, owned by the user of the training image.

    Only root may create folders in the root of the file system. The job's name depends on the namespaces, so
    a new namespace creates a new job.

    Args:
        namespaces: namespaces with a folder.
        node_labels: labels of the nodes on which the job may run; without labels, all nodes.
    """
    folders = " ".join(f"/fsx/{namespace}" for namespace in namespaces)
    owner = f"{TRAINING_UID}:{TRAINING_UID}"
    container = {
        "name": "folders",
        "image": SHELL.reference,
        "command": ["sh", "-euc"],
        # The owner of the contents stays unchanged, because an existing folder may contain terabytes.
        "args": [f"mkdir -p {folders} && chown {owner} {folders} && chmod 0750 {folders}"],
        "securityContext": _ROOT_SECURITY,
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "64Mi"}},
        "volumeMounts": [{"name": "fsx", "mountPath": "/fsx"}],
    }
    pod = _folder_pod(container, [_LUSTRE_VOLUME])
    placement = {"nodeSelector": dict(node_labels)} if node_labels else {}
    template = {"spec": {**pod, **placement}}
    return _job(FOLDER_JOB, {"backoffLimit": 10, "template": template})


_LUSTRE_VOLUME: Object = {"name": "fsx", "persistentVolumeClaim": {"claimName": LUSTRE_CLAIM}}


def _folder_pod(container: Object, volumes: list[Object]) -> Object:
    """Return the pod of a job that creates folders; it has no permissions in Kubernetes."""
    return {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
    }


def _job(prefix: str, spec: Object) -> Object:
    """Return a job in the system namespace.

    Jobs cannot be changed, so its name contains a hash of its spec.
    """
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    return kubernetes_object("batch/v1", "Job", f"{prefix}-{digest}", SYSTEM_NAMESPACE, spec=spec)


def studio_service_account() -> Object:
    """Return the service account of Studio's job."""
    return kubernetes_object("v1", "ServiceAccount", STUDIO_JOBS, SYSTEM_NAMESPACE)


def studio_program() -> Object:
    """Return the program.

    Its name contains a hash, so that running pods keep the version with which they started.
    """
    data = {STUDIO_PROGRAM.name: STUDIO_PROGRAM.read_text()}
    return kubernetes_object(
        "v1", "ConfigMap", _program_name(), SYSTEM_NAMESPACE, immutable=True, data=data
    )


def studio_queue_job(*, requests_url: str, acknowledgements_url: str, region: str) -> Object:
    """Return the job that handles queued requests every few minutes, until the queue is empty.

    At most one run is active at a time.
    """
    queues = [
        "--requests",
        requests_url,
        "--acknowledgements",
        acknowledgements_url,
        "--region",
        region,
    ]
    spec = {
        "schedule": f"*/{EVERY_MINUTES} * * * *",
        "concurrencyPolicy": "Forbid",
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 3,
        "jobTemplate": {"spec": _studio_spec("drain", queues, service_account=STUDIO_JOBS)},
    }
    return kubernetes_object("batch/v1", "CronJob", STUDIO_JOBS, SYSTEM_NAMESPACE, spec=spec)


def studio_shared_job(uids: Sequence[int]) -> Object:
    """Return the job that creates the partition that all spaces share; a new list of users is a new job."""
    arguments = ["--uids", ",".join(map(str, uids))]
    return _job("studio-shared", _studio_spec("shared", arguments, service_account=None))


def _program_name() -> str:
    return f"{STUDIO_JOBS}-{hashlib.sha256(STUDIO_PROGRAM.read_bytes()).hexdigest()[:8]}"


def _studio_spec(command: str, arguments: Sequence[str], *, service_account: str | None) -> Object:
    """Return the spec of a job that runs a command of the program."""
    root = f"/{STUDIO_FOLDER}"
    container = {
        "name": "partitions",
        "image": AWS_CLI.reference,
        "command": ["python3", f"/program/{STUDIO_PROGRAM.name}"],
        "args": [command, "--root", root, *arguments],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "AWS_PAGER", "value": ""}],
        "securityContext": _ROOT_SECURITY,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": [
            # Only this folder of the file system is mounted; it is created if it does not exist.
            {"name": "fsx", "mountPath": root, "subPath": STUDIO_FOLDER},
            {"name": "program", "mountPath": "/program", "readOnly": True},
            {"name": "temporary", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        _LUSTRE_VOLUME,
        {"name": "program", "configMap": {"name": _program_name()}},
        {"name": "temporary", "emptyDir": {"sizeLimit": "64Mi"}},
    ]
    pod = _folder_pod(container, volumes)
    if service_account:
        pod["serviceAccountName"] = service_account
    return {"backoffLimit": 3, "activeDeadlineSeconds": SECONDS_PER_RUN, "template": {"spec": pod}}
