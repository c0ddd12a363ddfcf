"""All stacks of a cluster, one for each lifetime."""

from typing import Any

from aws_cdk import App, Environment, Stack, Tags, Validations
from cdk_nag import AwsSolutionsChecks

from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.resource_names import construct_ids, stack_names, tags_of
from constructs.policy.role_settings import apply_role_settings
from stacks.eks_hyperpod_stack import EksHyperPodStack
from stacks.network_stack import NetworkStack
from stacks.observability_stack import ObservabilityStack
from stacks.slurm_hyperpod_stack import SlurmHyperPodStack
from stacks.storage_stack import StorageStack
from stacks.studio_stack import StudioStack


def add_stacks(app: App, cluster: AnyCluster) -> None:
    """Add the stacks of a cluster; the account is that of the credentials at deployment, not at synthesis."""

    def common(stack_name: str) -> dict[str, Any]:
        return {
            "cluster": cluster,
            "env": Environment(region=cluster.region),
            "stack_name": stack_name,
        }

    names = stack_names(cluster)
    ids = construct_ids(cluster)
    network_stack = NetworkStack(app, ids.network, **common(names.network))
    network = network_stack.network
    storage = StorageStack(app, ids.storage, network=network, **common(names.storage))
    stacks: list[Stack] = [network_stack, storage]
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
        stacks.append(studio)
    hyperpod_stack = EksHyperPodStack if isinstance(cluster, EksCluster) else SlurmHyperPodStack
    stacks.append(
        hyperpod_stack(
            app,
            ids.hyperpod,
            network=network,
            storage=storage,
            studio=studio,
            **common(names.hyperpod),
        )
    )
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
        # Tags are in the templates themselves, and not stack tags that CloudFormation passes on.
        for key, value in tags_of(cluster).items():
            Tags.of(stack).add(key, value)
        apply_role_settings(stack, cluster.iam)


def add_checks(app: App) -> None:
    """Add cdk-nag, which fails the synthesis if it has findings."""
    Validations.of(app).add_plugins(AwsSolutionsChecks(app, verbose=True))
