"""The CDK app: everything one cluster file describes (`-c cluster=clusters/slurm.yaml` is the default)."""

from __future__ import annotations

import sys
from pathlib import Path

from aws_cdk import App, Environment, Tags, Validations
from cdk_nag import AwsSolutionsChecks
from config.loader import load_cluster

from config.cluster import SlurmCluster
from stacks.network_stack import NetworkStack
from stacks.slurm_hyperpod_stack import SlurmHyperPodStack
from stacks.storage_stack import StorageStack
from stacks.tags import tags_of

DEFAULT_CLUSTER = "clusters/slurm.yaml"


def add_stacks(app: App, cluster: SlurmCluster) -> SlurmHyperPodStack:
    """Network, storage and cluster, each its own stack because each has its own lifetime.

    The account is that of the credentials at deployment, so that templates do not depend on who synthesizes.
    """
    tags, environment = tags_of(cluster), Environment(region=cluster.region)
    prefix = f"{cluster.name}-slurm"
    network = NetworkStack(
        app, "SlurmNetworkStack", cluster=cluster, env=environment, tags=tags, stack_name=f"{prefix}-network"
    )
    storage = StorageStack(
        app,
        "SlurmStorageStack",
        cluster=cluster,
        network=network.network,
        env=environment,
        tags=tags,
        stack_name=f"{prefix}-storage",
    )
    hyperpod = SlurmHyperPodStack(
        app,
        "SlurmHyperPodStack",
        cluster=cluster,
        network=network.network,
        storage=storage,
        env=environment,
        tags=tags,
        stack_name=f"{prefix}-hyperpod",
    )
    for key, value in tags.items():
        Tags.of(app).add(key, value)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app, verbose=True))
    return hyperpod


if __name__ == "__main__":
    app = App()
    try:
        cluster = load_cluster(Path(app.node.try_get_context("cluster") or DEFAULT_CLUSTER))
    except ValueError as error:
        sys.exit(str(error))
    add_stacks(app, cluster)
    app.synth()
