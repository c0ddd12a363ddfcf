"""The CDK app: everything one cluster file describes (`-c cluster=clusters/slurm.yaml` is the default)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from aws_cdk import App, Environment, Tags, Validations
from cdk_nag import AwsSolutionsChecks

from config.cluster_tags import tags_of
from config.loader import load_slurm_cluster
from config.slurm_cluster import SlurmCluster
from config.stack_names import stack_names
from stacks.network_stack import NetworkStack
from stacks.remaining_costs import remaining_costs
from stacks.slurm_hyperpod_stack import DEFAULT_CLUSTER, SlurmHyperPodStack
from stacks.storage_stack import StorageStack


def add_stacks(app: App, cluster: SlurmCluster) -> None:
    """A stack for each lifetime; the account is that of the credentials at deployment, not of synthesis."""

    def common(stack_name: str) -> dict[str, Any]:
        return {"cluster": cluster, "env": Environment(region=cluster.region), "stack_name": stack_name}

    names = stack_names(cluster)
    network = NetworkStack(app, "SlurmNetworkStack", **common(names.network)).network
    storage = StorageStack(app, "SlurmStorageStack", network=network, **common(names.storage))
    SlurmHyperPodStack(app, "SlurmHyperPodStack", network=network, storage=storage, **common(names.hyperpod))
    for key, value in tags_of(cluster).items():  # in the templates, not left to the stacks to hand on
        Tags.of(app).add(key, value)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app, verbose=True))


if __name__ == "__main__":
    app = App()
    try:
        cluster = load_slurm_cluster(Path(app.node.try_get_context("cluster") or DEFAULT_CLUSTER))
    except ValueError as error:
        sys.exit(str(error))
    # At every command, because the command line shows no app which one it is, nor annotations at destroy.
    costs = ", ".join(remaining_costs(cluster))
    print(f"{cluster.name}: billed until `make teardown`, nodes or not: {costs}", file=sys.stderr)
    add_stacks(app, cluster)
    app.synth()
