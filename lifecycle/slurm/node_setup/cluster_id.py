"""Repair of a controller whose state and accounting database have different numbers for the cluster.

slurmctld of 23.11 and later ends at its start then. This happens if accounting was set up after slurmctld's
first start, as when a redeployed cluster gets the database of its predecessor. Without the file
``clustername``, slurmctld adopts the number of the database; the queue in its state stays.
"""

import re
import socket

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.slurm import has_cluster_id_mismatch, slurm_conf

SLURMCTLD_PORT = 6817
"""Slurm's default, which HyperPod keeps."""
SECONDS_FOR_OTHER_CONTROLLER = 3
"""Time limit for a connection. A controller that lives answers at once."""


def repair(node: Node) -> bool:
    """Have slurmctld adopt the database's number, if its log says that it ends with CLUSTER ID MISMATCH.

    Return whether slurmctld was started again.

    Nothing changes on secondary controllers, and if the state is on a file system that several clusters can
    mount. The cause is then reported by ``why_controller_is_down``.

    Raises:
        SetupError: if another controller runs with this cluster's name in the database.
    """
    if not node.facts.is_primary_controller or not has_cluster_id_mismatch(node.host):
        return False
    settings = slurm_conf(node.host)
    folder = settings.get("statesavelocation", "")
    record = f"{folder}/clustername"
    if not folder or _is_shared(node, folder) or not node.host.path(record).is_file():
        return False
    _verify_no_other(node, settings.get("clustername", "").lower())
    node.host.run("systemctl", "stop", "slurmctld", timeout_seconds=120)
    # A service that failed too often does not start before it is reset.
    node.host.try_run("systemctl", "reset-failed", "slurmctld")
    node.host.path(record).rename(node.host.path(f"{record}.old"))
    node.host.run("systemctl", "start", "slurmctld", timeout_seconds=120)
    node.changed(
        f"slurmctld: adopts the accounting database's number of the cluster ({record} moved to {record}.old)"
    )
    return True


def _is_shared(node: Node, folder: str) -> bool:
    mounts = (node.settings.lustre_mount_path, node.settings.home_mount_path)
    return any(mount and f"{folder}/".startswith(f"{mount}/") for mount in mounts)


def _verify_no_other(node: Node, cluster: str) -> None:
    """Refuse if the database names another controller of the cluster, and that one answers."""
    shown = node.host.run(
        "sacctmgr",
        "--parsable2",
        "--noheader",
        "show",
        "cluster",
        "format=cluster,controlhost,controlport",
        remedy="see `systemctl status slurmdbd` on the controller",
    )
    for line in shown.splitlines():
        name, host, port = [*line.split("|"), "", ""][:3]
        is_other = host not in ("", node.facts.address, node.facts.host_name, "127.0.0.1")
        if name == cluster and is_other and _answers(host, port):
            raise SetupError(
                f"the accounting database names the controller {host} for cluster {cluster}, and it answers; "
                "this controller has another number for the cluster",
                "two clusters use one schema: set accounting_database.schema_name in one of the two files",
            )


def _answers(host: str, port: str) -> bool:
    number = int(port) if re.fullmatch(r"[1-9]\d*", port) else SLURMCTLD_PORT
    try:
        with socket.create_connection((host, number), timeout=SECONDS_FOR_OTHER_CONTROLLER):
            return True
    except OSError:
        return False
