"""Settings of the scripts on the nodes, as JSON that depends on the cluster file only.

``lifecycle/slurm/node_setup/settings.py`` reads it. It contains no values of a deployment, because the text
is part of the hash that names the scripts' folder in S3.
"""

import json
from typing import Any

from config.access import Access
from config.proxy_environment import proxy_environment
from config.slurm_cluster import SlurmCluster, SlurmInstanceGroup, node_weights
from config.storage import EFA_CLIENT_SHA256, EFA_CLIENT_URL, HOMES

HOME_MOUNT_PATH = HOMES
"""Mount path of the OpenZFS file system on nodes, if there is one."""


def node_settings(cluster: SlurmCluster) -> dict[str, Any]:
    """Return the settings of the cluster file that the scripts need.

    Raises:
        ValueError: if HyperPod does not offer a group's instance type, which ``load_cluster`` refuses.
    """
    setup = cluster.node_setup
    lustre = cluster.storage.lustre
    has_efa = lustre is not None and lustre.efa
    weights = node_weights(cluster)
    efa_client = {"url": EFA_CLIENT_URL, "sha256": EFA_CLIENT_SHA256} if has_efa else None
    return {
        "cluster_name": cluster.name,
        "region": cluster.region,
        "lustre_mount_path": lustre.mount_path if lustre else None,
        "shared_path": cluster.storage.shared_path,
        "bucket_mount_path": cluster.storage.data_bucket.mount_path,
        "lustre_efa": efa_client,
        "home_mount_path": HOME_MOUNT_PATH if cluster.storage.home else None,
        "instance_groups": {
            group.name: _instance_group(group, weights.get(group.name))
            for group in cluster.instance_groups
        },
        **_access(cluster.access),
        "proxy": proxy_environment(cluster),
        "scheduling": cluster.scheduling.model_dump() if cluster.scheduling else None,
        "external_accounting": cluster.accounting_database is not None,
        "container_storage": setup.container_storage,
        "pam_slurm_adopt": setup.pam_slurm_adopt,
        "metrics": cluster.prometheus,
        "cloudwatch_agent": setup.cloudwatch_agent,
        "health_check_prolog": setup.health_check_prolog,
        "workload_code": setup.workload_code,
        "studio": _studio(cluster),
        "downloads": setup.downloads,
    }


def node_settings_text(cluster: SlurmCluster) -> str:
    """Return the settings as JSON, with the same bytes for the same cluster file in any order of keys."""
    return json.dumps(node_settings(cluster), indent=2, sort_keys=True) + "\n"


def _instance_group(group: SlurmInstanceGroup, weight: int | None) -> dict[str, Any]:
    hardware = group.hardware
    return {
        "role": group.role,
        "instance_type": group.types_text,
        "partition": group.partition,
        "num_gpus": hardware.num_gpus,
        "num_neuron_devices": hardware.num_neuron_devices,
        "num_efa_interfaces": hardware.num_efa,
        "weight": weight,
        "feature": None if weight is None else group.bought_as,
    }


def _studio(cluster: SlurmCluster) -> dict[str, Any] | None:
    if cluster.studio is None:
        return None
    return {
        "partitions": cluster.studio.partitions,
        "shared_uids": [user.uid for user in cluster.access.users],
        "login_spaces": cluster.studio.has_login_spaces,
    }


def _access(access: Access) -> dict[str, list[dict[str, Any]]]:
    """Return users, groups and accounts; the list of groups includes each user's own group."""
    own = [{"name": user.name, "gid": user.uid} for user in access.users if user.group is None]
    return {
        "groups": [group.model_dump() for group in access.groups] + own,
        "users": [{**user.model_dump(), "group": user.group or user.name} for user in access.users],
        "accounts": [account.model_dump() for account in access.accounts],
    }
