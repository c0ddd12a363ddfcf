"""What the scripts on the nodes can do in the cluster that the file describes."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import NewVpc, SlurmCluster
from config.violation import Violation

HOMES = "/home"
"""Of the Lustre file system: where homes are without ``storage.home``."""


def closed_network_has_a_mirror(cluster: SlurmCluster) -> Iterator[Violation]:
    """Nothing else is fetched: the image has Slurm, pyxis, Docker and the AWS command line."""
    network = cluster.network
    wanting = [
        path
        for path, wanted in (
            ("prometheus", cluster.prometheus),
            ("node_setup.cloudwatch_agent", cluster.node_setup.cloudwatch_agent),
        )
        if wanted
    ]
    closed = isinstance(network, NewVpc) and network.internet == "none"
    if closed and wanting and cluster.node_setup.downloads == "internet":
        yield Violation(
            "node_setup.downloads",
            "internet",
            f"nodes in a closed network (network.internet: none) get the files for {' and '.join(wanting)}"
            " from the artifact bucket alone",
            f"set artifact_bucket, or {' and '.join(wanting)} to false",
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
