"""What the scripts on the nodes can do in the cluster that the file describes."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import NewVpc
from config.reading.violation import Violation
from config.slurm_cluster import SlurmCluster

HOMES = "/home"
"""Of the Lustre file system: where homes are without ``storage.home``."""


def closed_network_has_a_mirror(cluster: SlurmCluster) -> Iterator[Violation]:
    """Only what metrics need is fetched: all else is on the image, CloudWatch's agent too."""
    network = cluster.network
    closed = isinstance(network, NewVpc) and network.internet == "none"
    if closed and cluster.prometheus and cluster.node_setup.downloads == "internet":
        yield Violation(
            "node_setup.downloads",
            "internet",
            "nodes in a closed network (network.internet: none) get what prometheus needs, exporters and"
            " collector, from the artifact bucket alone",
            "set artifact_bucket, and run `make mirror-downloads` before nodes start; or prometheus to false",
        )


def adopted_logins_have_users(cluster: SlurmCluster) -> Iterator[Violation]:
    """The image's own user submits no jobs, so it alone would be kept out, also of nodes it must repair."""
    if cluster.node_setup.pam_slurm_adopt and not cluster.access.users:
        yield Violation(
            "node_setup.pam_slurm_adopt",
            True,
            "it keeps users off nodes where they have no job, and the file names no users",
            "add access.users, or set false",
        )


def homes_are_not_exported(cluster: SlurmCluster) -> Iterator[Violation]:
    """Homes have private keys and passwords in them; the data bucket is read by other people."""
    storage = cluster.storage
    path = storage.data_bucket.lustre_path
    if cluster.access.users and storage.home is None and path and f"{path}/".startswith(f"{HOMES}/"):
        yield Violation(
            "storage.data_bucket.lustre_path",
            path,
            f"without storage.home the users' homes are in {HOMES} of the Lustre file system, and would be"
            " copied to the bucket",
            "set another directory, as /data, or add storage.home",
        )


RULES = (closed_network_has_a_mirror, adopted_logins_have_users, homes_are_not_exported)
