"""Kubernetes objects that give every namespace of jobs a folder in the memory of each node.

The namespaces forbid volumes of nodes in pods, because these would give a pod any file of its node. A
PersistentVolume of this kind is not forbidden: only administrators create one, its path is fixed, and its
claim belongs to one namespace. Teams therefore do not see each other's folders.

The folder outlives the pod. A DaemonSet gives it to the user of the training image, and deletes what ended
jobs have left in it.
"""

from collections.abc import Sequence

from config.resource_names import NODE_MEMORY_CLAIM, TRAINING_UID
from manifests.lustre import HYPERPOD_NODES
from manifests.objects import SYSTEM_NAMESPACE, Object, kubernetes_object
from manifests.public_images import SHELL

KEEPER = "node-memory"
"""DaemonSet that owns the folders."""
IN_MEMORY = "/dev/shm"
"""File system of nodes in memory."""
LEFTOVER_MINUTES = 30
"""Age from which a folder of a job that no pod holds is deleted. A job that starts again needs it sooner."""
_CAPACITY = "1Gi"
"""Kubernetes requires a size, and does not enforce it for volumes of this kind."""
_MOUNT = "/node"
_PAUSE_SECONDS = 60


def memory_volume(namespace: str) -> Object:
    """Return the volume of a namespace's folder on whichever node a pod runs."""
    spec = {
        "capacity": {"storage": _CAPACITY},
        "volumeMode": "Filesystem",
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": namespace,
            "name": NODE_MEMORY_CLAIM,
        },
        # A new node's pods may start before the DaemonSet's, which then gives the folder to their user.
        "hostPath": {"path": _folder(IN_MEMORY, namespace), "type": "DirectoryOrCreate"},
    }
    return kubernetes_object("v1", "PersistentVolume", memory_volume_name(namespace), spec=spec)


def memory_claim(namespace: str) -> Object:
    """Return the claim of a namespace's volume."""
    spec = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": memory_volume_name(namespace),
        "resources": {"requests": {"storage": _CAPACITY}},
    }
    return kubernetes_object("v1", "PersistentVolumeClaim", NODE_MEMORY_CLAIM, namespace, spec=spec)


def memory_keeper(namespaces: Sequence[str]) -> Object:
    """Return the DaemonSet. With a new namespace, its pods start again and create the folder.

    Args:
        namespaces: all namespaces of jobs.
    """
    labels = {"app.kubernetes.io/name": KEEPER}
    folders = " ".join(_folder(_MOUNT, namespace) for namespace in namespaces)
    owner = f"{TRAINING_UID}:{TRAINING_UID}"
    create = f"mkdir -p {folders} && chmod 0700 {folders} && chown {owner} {folders}"
    as_root = {"runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]}}
    as_training = {
        "runAsUser": TRAINING_UID,
        "runAsGroup": TRAINING_UID,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": HYPERPOD_NODES,
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [_container("create", create, as_root)],
        "containers": [_container("delete", deletion(folders), as_training)],
        "volumes": [{"name": "memory", "hostPath": {"path": IN_MEMORY, "type": "Directory"}}],
    }
    spec = {
        "selector": {"matchLabels": labels},
        # Jobs do not need its pods while they run.
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return kubernetes_object("apps/v1", "DaemonSet", KEEPER, SYSTEM_NAMESPACE, spec=spec)


def deletion(folders: str) -> str:
    """Return the shell program that deletes folders of ended jobs for ever.

    A pod that uses a folder holds a lock on the file ``lock`` in it (``seqlm.launch.pod_memory``). Links are
    not followed, because pods may create them.

    Args:
        folders: folders of namespaces, separated by spaces.
    """
    find = f"find {folders} -mindepth 1 -maxdepth 1 -type d -mmin +{LEFTOVER_MINUTES}"
    return f"""while true
do
    {find} -exec flock -n {{}}/lock rm -rf {{}} ';'
    sleep {_PAUSE_SECONDS}
done
"""


def _container(name: str, program: str, security: Object) -> Object:
    return {
        "name": name,
        "image": SHELL.reference,
        "command": ["sh", "-uc"],
        "args": [program],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            **security,
        },
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "32Mi"}},
        "volumeMounts": [{"name": "memory", "mountPath": _MOUNT}],
    }


def _folder(root: str, namespace: str) -> str:
    return f"{root}/seqlm-{namespace}"


def memory_volume_name(namespace: str) -> str:
    """Return the name of a namespace's volume."""
    return f"{NODE_MEMORY_CLAIM}-{namespace}"
