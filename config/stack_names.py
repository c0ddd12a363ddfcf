"""CloudFormation names of a cluster's stacks, for the app and the tools."""

from __future__ import annotations

from typing import NamedTuple

from config.cluster import Cluster


class StackNames(NamedTuple):
    """In the order of deployment; the last is destroyed first."""

    network: str
    storage: str
    hyperpod: str


def construct_ids(cluster: Cluster) -> StackNames:
    """What people type after `cdk deploy`."""
    prefix = {"slurm": "Slurm", "eks": "Eks"}[cluster.scheduler]
    return StackNames(f"{prefix}NetworkStack", f"{prefix}StorageStack", f"{prefix}HyperPodStack")


def stack_names(cluster: Cluster) -> StackNames:
    prefix = f"{cluster.name}-{cluster.scheduler}"
    return StackNames(f"{prefix}-network", f"{prefix}-storage", f"{prefix}-hyperpod")
