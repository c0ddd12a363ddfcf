"""All stacks of a cluster: one for each lifetime."""

import json
from pathlib import Path
from typing import Any

from aws_cdk import App, CfnOutput, Environment, Stack, Tags, Validations
from cdk_nag import AwsSolutionsChecks

from config.cluster import Cluster
from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.resource_names import construct_ids, stack_names, tags_of
from constructs import Construct
from constructs.policy.role_settings import apply_role_settings
from constructs.vpc.network import Network
from stacks.eks_hyperpod_stack import EksHyperPodStack
from stacks.observability_stack import ObservabilityStack
from stacks.slurm_hyperpod_stack import SlurmHyperPodStack
from stacks.storage_stack import StorageStack
from stacks.studio_stack import StudioStack

MAX_TEMPLATE_BYTES = 1_000_000
"""Limit of a template in S3 (CloudFormation user guide, "Understand CloudFormation quotas")."""


class NetworkStack(Stack):
    """Network of a cluster, which outlives all other stacks."""

    def __init__(self, scope: Construct, construct_id: str, *, cluster: Cluster, **kwargs: Any) -> None:
        super().__init__(scope, construct_id, **kwargs)
        self.network = Network(self, "Network", cluster=cluster)
        CfnOutput(self, "VpcId", value=self.network.vpc.vpc_id)
        CfnOutput(self, "SubnetId", value=self.network.subnet(None).subnet_id)
        CfnOutput(self, "SecurityGroupId", value=self.network.security_group.security_group_id)


def add_stacks(app: App, cluster: AnyCluster) -> None:
    """All stacks of a cluster; the account is that of the credentials at deployment, not of synthesis."""

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
            app, ids.hyperpod, network=network, storage=storage, studio=studio, **common(names.hyperpod)
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
        apply_role_settings(stack, cluster.iam)


def add_checks(app: App) -> None:
    """cdk-nag, whose findings end a synthesis."""
    Validations.of(app).add_plugins(AwsSolutionsChecks(app, verbose=True))


def errors_of(metadata: Path) -> list[str]:
    """Errors that a stack reported of itself during synthesis, from its file ``<stack>.metadata.json``."""
    if not metadata.is_file():
        return []
    entries = [entry for found in json.loads(metadata.read_text()).values() for entry in found]
    return [entry["data"] for entry in entries if entry["type"] == "aws:cdk:error"]


def remove_refused(folder: Path) -> None:
    """Delete the templates of stacks with errors from a cloud assembly, so that nothing can deploy them.

    The command line reports the error at every command that synthesizes, compares or deploys the stack.
    """
    for metadata in folder.glob("*.metadata.json"):
        if errors_of(metadata):
            metadata.with_name(metadata.name.replace(".metadata.", ".template.")).unlink(missing_ok=True)


def oversized(folder: Path) -> list[str]:
    """Return a message for each template of a cloud assembly that CloudFormation would refuse for its size.

    aws-cdk-lib only warns.
    """
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.template.json"))}
    return [
        f"{name.removesuffix('.template.json')}: the template has {size:,} bytes, CloudFormation takes"
        f" {MAX_TEMPLATE_BYTES:,}; tags stand at every resource, labels and taints at every group: set fewer"
        " or shorter ones, or fewer groups, teams or access entries"
        for name, size in sizes.items()
        if size > MAX_TEMPLATE_BYTES
    ]
