"""The CDK app: everything one cluster file describes (`-c cluster=clusters/slurm.yaml` is the default)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from aws_cdk import App, Environment, Tags, Validations
from cdk_nag import AwsSolutionsChecks

from config.cluster import SlurmCluster
from config.loader import load_cluster
from stacks.network_stack import NetworkStack
from stacks.remaining_costs import remaining_costs
from stacks.slurm_hyperpod_stack import DEFAULT_CLUSTER, SlurmHyperPodStack
from stacks.storage_stack import StorageStack
from stacks.tags import tags_of


def add_stacks(app: App, cluster: SlurmCluster) -> None:
    """Network, storage and cluster, each a stack of its own because each has a lifetime of its own.

    The account is that of the credentials at deployment, so that templates do not depend on who synthesizes.
    """

    def common(part: str) -> dict[str, Any]:
        env = Environment(region=cluster.region)
        return {"cluster": cluster, "env": env, "stack_name": f"{cluster.name}-slurm-{part}"}

    network = NetworkStack(app, "SlurmNetworkStack", **common("network")).network
    storage = StorageStack(app, "SlurmStorageStack", network=network, **common("storage"))
    SlurmHyperPodStack(app, "SlurmHyperPodStack", network=network, storage=storage, **common("hyperpod"))
    for key, value in tags_of(cluster).items():  # in the templates, not left to the stacks to hand on
        Tags.of(app).add(key, value)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app, verbose=True))


if __name__ == "__main__":
    app = App()
    try:
        cluster = load_cluster(Path(app.node.try_get_context("cluster") or DEFAULT_CLUSTER))
    except ValueError as error:
        sys.exit(str(error))
    # At every command, because the command line shows no app which one it is, nor annotations at destroy.
    costs = ", ".join(remaining_costs(cluster))
    print(f"{cluster.name}: billed until `make teardown`, nodes or not: {costs}", file=sys.stderr)
    add_stacks(app, cluster)
    app.synth()
