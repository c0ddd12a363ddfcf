"""Whose partitions and spaces are whose, for what is told to functions, nodes and spaces."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from config.cluster import Cluster
from config.kubernetes_names import TRAINING_UID
from config.node_settings import HOME_MOUNT_PATH
from config.slurm_cluster import SlurmCluster


@dataclass(frozen=True)
class ClusterUser:
    """Whom a profile's jobs are, as nodes know them."""

    user: str
    uid: int
    gid: int
    home: str

    def as_dict(self) -> dict[str, str | int]:
        return asdict(self)


def cluster_users(cluster: Cluster) -> dict[str, ClusterUser]:
    """By profile; profiles without a user of the cluster are not in it."""
    if not (isinstance(cluster, SlurmCluster) and cluster.studio):
        return {}
    users = {user.name: user for user in cluster.access.users}
    gids = {group.name: group.gid for group in cluster.access.groups}
    homes = HOME_MOUNT_PATH if cluster.storage.home else f"{cluster.storage.lustre.mount_path}/home"
    return {
        profile.name: ClusterUser(
            user.name, user.uid, gids[user.group] if user.group else user.uid, f"{homes}/{user.name}"
        )
        for profile in cluster.studio.profiles
        if (user := users.get(profile.cluster_user or ""))
    }


def partition_uids(cluster: Cluster) -> dict[str, list[int]]:
    """Who beside Studio's own user may enter a profile's partition, by profile; under "" who enters all."""
    if isinstance(cluster, SlurmCluster):
        return {profile: [user.uid] for profile, user in cluster_users(cluster).items()}
    return {"": [TRAINING_UID]}


def shared_uids(cluster: Cluster) -> list[int]:
    """Who enters the partition that all spaces share: every user of the cluster, or what pods run as."""
    if isinstance(cluster, SlurmCluster):
        return [user.uid for user in cluster.access.users]
    return [TRAINING_UID]
