"""CloudFormation names of a cluster's stacks, for the app and the tools."""

from __future__ import annotations

from typing import NamedTuple

from config.cluster import Cluster


class StackNames(NamedTuple):
    """In the order of deployment; the last is destroyed first."""

    network: str
    storage: str
    studio: str
    """As the next but one; before the cluster, which refers to it."""
    hyperpod: str
    observability: str
    """A stack that is there only if the file has its section, or had it when it was deployed."""


def construct_ids(cluster: Cluster) -> StackNames:
    """What people type after `cdk deploy`."""
    prefix = {"slurm": "Slurm", "eks": "Eks"}[cluster.scheduler]
    return StackNames(
        f"{prefix}NetworkStack",
        f"{prefix}StorageStack",
        f"{prefix}StudioStack",
        f"{prefix}HyperPodStack",
        f"{prefix}ObservabilityStack",
    )


def stack_names(cluster: Cluster) -> StackNames:
    prefix = f"{cluster.name}-{cluster.scheduler}"
    return StackNames(
        f"{prefix}-network",
        f"{prefix}-storage",
        f"{prefix}-studio",
        f"{prefix}-hyperpod",
        f"{prefix}-observability",
    )


def wanted_stacks(cluster: Cluster, of: StackNames) -> list[str]:
    """Those of the names or ids whose stacks the file asks for."""
    optional = {of.studio: cluster.studio, of.observability: cluster.observability}
    return [name for name in of if name not in optional or optional[name]]
