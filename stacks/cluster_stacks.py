"""All stacks of a cluster: one for each lifetime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aws_cdk import App, Environment, Stack, Tags, Validations
from cdk_nag import AwsSolutionsChecks

from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.resource_names import construct_ids, stack_names, tags_of
from stacks.eks_hyperpod_stack import EksHyperPodStack
from stacks.network_stack import NetworkStack
from stacks.observability_stack import ObservabilityStack
from stacks.slurm_hyperpod_stack import SlurmHyperPodStack
from stacks.storage_stack import StorageStack
from stacks.studio_stack import StudioStack


def add_stacks(app: App, cluster: AnyCluster, *, chart_stand_ins: Path | None = None) -> None:
    """All stacks of a cluster; the account is that of the credentials at deployment, not of synthesis.

    ``chart_stand_ins`` is for tests without a network: a folder of charts in place of the cache.
    """

    def common(stack_name: str) -> dict[str, Any]:
        return {"cluster": cluster, "env": Environment(region=cluster.region), "stack_name": stack_name}

    names, ids = stack_names(cluster), construct_ids(cluster)
    network_stack = NetworkStack(app, ids.network, **common(names.network))
    network = network_stack.network
    storage = StorageStack(app, ids.storage, network=network, **common(names.storage))
    studio = None
    if cluster.studio:
        studio = StudioStack(
            app,
            ids.studio,
            studio=cluster.studio,
            network=network,
            storage=storage,
            **common(names.studio),
        )
    hyperpod: Stack
    if isinstance(cluster, EksCluster):
        hyperpod = EksHyperPodStack(
            app,
            ids.hyperpod,
            network=network,
            storage=storage,
            studio=studio,
            chart_stand_ins=chart_stand_ins,
            **common(names.hyperpod),
        )
    else:
        hyperpod = SlurmHyperPodStack(
            app, ids.hyperpod, network=network, storage=storage, studio=studio, **common(names.hyperpod)
        )
    stacks: list[Stack] = [network_stack, storage, *([studio] if studio else []), hyperpod]
    if cluster.observability:
        stacks.append(
            ObservabilityStack(
                app,
                ids.observability,
                settings=cluster.observability,
                storage=storage,
                **common(names.observability),
            )
        )
    for stack in stacks:
        for key, value in tags_of(cluster).items():  # in the templates, not left to the stacks to hand on
            Tags.of(stack).add(key, value)


def add_checks(app: App) -> None:
    """cdk-nag, whose findings end a synthesis."""
    Validations.of(app).add_plugins(AwsSolutionsChecks(app, verbose=True))
