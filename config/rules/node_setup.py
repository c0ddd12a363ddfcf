"""Rules for the scripts on the nodes."""

from config.rules.rule import SlurmRule, has_closed_network
from config.slurm_cluster import SlurmCluster

HOMES = "/home"
"""Directory of homes on the Lustre file system, without ``storage.home``."""


def _exports_homes(cluster: SlurmCluster) -> bool:
    path = cluster.storage.data_bucket.lustre_path
    on_lustre = bool(cluster.access.users) and cluster.storage.home is None
    return on_lustre and f"{path}/".startswith(f"{HOMES}/")


RULES = (
    # Nodes fetch only software for metrics. All else, including CloudWatch's agent, is on the image.
    SlurmRule(
        "node_setup.downloads",
        lambda cluster: (
            has_closed_network(cluster) and cluster.prometheus and cluster.node_setup.downloads == "internet"
        ),
        "nodes in a closed network (network.internet: none) get the software for prometheus, exporters and"
        " collector, only from the artifact bucket",
        "set artifact_bucket, and run `make mirror-downloads` before nodes start; or prometheus to false",
    ),
    # The image's own user submits no jobs, so it would be locked out, even of nodes that it must repair.
    SlurmRule(
        "node_setup.pam_slurm_adopt",
        lambda cluster: cluster.node_setup.pam_slurm_adopt and not cluster.access.users,
        "it keeps users off nodes where they have no job, and the file names no users",
        "add access.users, or set false",
    ),
    # Homes contain private keys and passwords, and other people read the data bucket.
    SlurmRule(
        "storage.data_bucket.lustre_path",
        _exports_homes,
        f"without storage.home the users' homes are in {HOMES} of the Lustre file system, and would be"
        " copied to the bucket",
        "set another directory, such as /data, or add storage.home",
    ),
)
