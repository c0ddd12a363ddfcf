"""CloudFormation names of a cluster's stacks, for the app and the tools."""

from __future__ import annotations

from typing import NamedTuple

from config.cluster import Cluster


class StackNames(NamedTuple):
    """In the order of deployment; the last is destroyed first."""

    network: str
    storage: str
    hyperpod: str


def stack_names(cluster: Cluster) -> StackNames:
    prefix = f"{cluster.name}-{cluster.scheduler}"
    return StackNames(f"{prefix}-network", f"{prefix}-storage", f"{prefix}-hyperpod")
