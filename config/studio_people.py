"""Cluster users of Studio profiles, access to their partitions, and their submission of jobs."""

from dataclasses import dataclass
from typing import Any

from config.cluster import Cluster
from config.node_settings import HOME_MOUNT_PATH
from config.resource_names import TRAINING_UID
from config.slurm_cluster import SlurmCluster

SUBMIT = "/usr/local/lib/node-setup/studio_submit_{cluster}.py"
"""Path of lifecycle/slurm/studio/submit.py on the controller. It contains the cluster's name, because roles
may open sessions with nodes of any cluster, where the same user name may belong to another person."""
PARAMETER = "request"
"""Parameter of the document that contains a request."""
MAX_REQUEST = 40_000
"""Most characters of a request."""


@dataclass(frozen=True)
class ClusterUser:
    """Owner of a profile's jobs on the nodes."""

    user: str
    """Login name."""
    uid: int
    gid: int
    home: str
    """Home directory on the nodes."""


def cluster_users(cluster: Cluster) -> dict[str, ClusterUser]:
    """Return the cluster user of each profile that has one, by profile."""
    if not (isinstance(cluster, SlurmCluster) and cluster.studio):
        return {}
    users = {user.name: user for user in cluster.access.users}
    gids = {group.name: group.gid for group in cluster.access.groups}
    homes = HOME_MOUNT_PATH if cluster.storage.home else f"{cluster.storage.shared_path}/home"
    found = {}
    for profile in cluster.studio.profiles:
        user = users.get(profile.cluster_user or "")
        if user:
            # A user without a group has an own group with the user's number.
            gid = gids[user.group] if user.group else user.uid
            found[profile.name] = ClusterUser(user.name, user.uid, gid, home=f"{homes}/{user.name}")
    return found


def partition_uids(cluster: Cluster) -> dict[str, list[int]]:
    """Return the uids beside Studio's that may enter each profile's partition; "" stands for all."""
    if isinstance(cluster, SlurmCluster):
        return {profile: [user.uid] for profile, user in cluster_users(cluster).items()}
    return {"": [TRAINING_UID]}


def shared_uids(cluster: Cluster) -> list[int]:
    """Return the uids that may enter the shared partition: every user of the cluster, or the pods' user."""
    if isinstance(cluster, SlurmCluster):
        return [user.uid for user in cluster.access.users]
    return [TRAINING_UID]


def session_document_name(cluster: Cluster, profile: str) -> str:
    return f"{cluster.name}-studio-{profile}"


def session_document(cluster: Cluster, user: str) -> dict[str, Any]:
    """Return the Systems Manager document with which a space submits jobs as one user of the cluster.

    It runs one command as ``user`` with one base64 argument, which a shell cannot interpret.
    """
    return {
        "schemaVersion": "1.0",
        "description": f"Slurm's commands on HyperPod cluster {cluster.name} as {user}, for SageMaker Studio",
        "sessionType": "InteractiveCommands",
        "parameters": {
            PARAMETER: {
                "type": "String",
                "description": "Base64 of JSON, which lifecycle/slurm/studio/submit.py reads",
                "allowedPattern": f"^[A-Za-z0-9+/=]{{1,{MAX_REQUEST}}}$",
            }
        },
        "properties": {
            "linux": {
                "commands": (
                    f"runuser --user {user} -- env PATH=/opt/slurm/bin:/usr/local/bin:/usr/bin:/bin"
                    f" python3 {SUBMIT.format(cluster=cluster.name)} {{{{ {PARAMETER} }}}}"
                ),
                "runAsElevated": True,
            }
        },
    }
