"""All stacks of a cluster: one for each lifetime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aws_cdk import App, Environment, Stack, Tags, Validations
from cdk_nag import AwsSolutionsChecks

from config.cluster_kinds import AnyCluster
from config.cluster_tags import tags_of
from config.eks_cluster import EksCluster
from config.stack_names import construct_ids, stack_names
from stacks.eks_hyperpod_stack import EksHyperPodStack
from stacks.network_stack import NetworkStack
from stacks.slurm_hyperpod_stack import SlurmHyperPodStack
from stacks.storage_stack import StorageStack


def add_stacks(app: App, cluster: AnyCluster, *, chart_stand_ins: Path | None = None) -> None:
    """Network, storage and cluster; the account is that of the credentials at deployment, not of synthesis.

    ``chart_stand_ins`` is for tests without a network: a folder of charts in place of the cache.
    """

    def common(stack_name: str) -> dict[str, Any]:
        return {"cluster": cluster, "env": Environment(region=cluster.region), "stack_name": stack_name}

    names, ids = stack_names(cluster), construct_ids(cluster)
    network_stack = NetworkStack(app, ids.network, **common(names.network))
    network = network_stack.network
    storage = StorageStack(app, ids.storage, network=network, **common(names.storage))
    hyperpod: Stack
    if isinstance(cluster, EksCluster):
        hyperpod = EksHyperPodStack(
            app,
            ids.hyperpod,
            network=network,
            storage=storage,
            chart_stand_ins=chart_stand_ins,
            **common(names.hyperpod),
        )
    else:
        hyperpod = SlurmHyperPodStack(
            app, ids.hyperpod, network=network, storage=storage, **common(names.hyperpod)
        )
    for stack in (network_stack, storage, hyperpod):
        for key, value in tags_of(cluster).items():  # in the templates, not left to the stacks to hand on
            Tags.of(stack).add(key, value)


def add_checks(app: App) -> None:
    """cdk-nag, whose findings end a synthesis."""
    Validations.of(app).add_plugins(AwsSolutionsChecks(app, verbose=True))
