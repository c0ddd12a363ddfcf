"""What the scripts on the nodes can do in the cluster that the file describes."""

from __future__ import annotations

from config.rules.rule import SlurmRule, has_closed_network
from config.slurm_cluster import SlurmCluster

HOMES = "/home"
"""Of the Lustre file system: where homes are without ``storage.home``."""


def _exports_homes(cluster: SlurmCluster) -> bool:
    path = cluster.storage.data_bucket.lustre_path
    on_lustre = bool(cluster.access.users) and cluster.storage.home is None
    return on_lustre and f"{path}/".startswith(f"{HOMES}/")


RULES = (
    # Only what metrics need is fetched: all else is on the image, CloudWatch's agent too.
    SlurmRule(
        "node_setup.downloads",
        lambda cluster: (
            has_closed_network(cluster) and cluster.prometheus and cluster.node_setup.downloads == "internet"
        ),
        "nodes in a closed network (network.internet: none) get what prometheus needs, exporters and"
        " collector, from the artifact bucket alone",
        "set artifact_bucket, and run `make mirror-downloads` before nodes start; or prometheus to false",
    ),
    # The image's own user submits no jobs, so it alone would be kept out, also of nodes it must repair.
    SlurmRule(
        "node_setup.pam_slurm_adopt",
        lambda cluster: cluster.node_setup.pam_slurm_adopt and not cluster.access.users,
        "it keeps users off nodes where they have no job, and the file names no users",
        "add access.users, or set false",
    ),
    # Homes have private keys and passwords in them; the data bucket is read by other people.
    SlurmRule(
        "storage.data_bucket.lustre_path",
        _exports_homes,
        f"without storage.home the users' homes are in {HOMES} of the Lustre file system, and would be"
        " copied to the bucket",
        "set another directory, as /data, or add storage.home",
    ),
)
