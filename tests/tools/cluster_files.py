"""The shipped cluster files, with changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.slurm_cluster import SlurmCluster

Changed = TypeVar("Changed", bound=Cluster)
CLUSTERS = Path(__file__).parents[2] / "clusters"


def shipped(name: str, **changes: Any) -> SlurmCluster:
    """``clusters/<name>.yaml`` with top-level fields replaced."""
    return SlurmCluster.model_validate(
        yaml.safe_load((CLUSTERS / f"{name}.yaml").read_text()) | changes
    )


def shipped_eks(name: str, **changes: Any) -> EksCluster:
    """The same of a file for EKS."""
    return EksCluster.model_validate(
        yaml.safe_load((CLUSTERS / f"{name}.yaml").read_text()) | changes
    )


def with_group(cluster: Changed, group_name: str, **changes: Any) -> Changed:
    """The cluster with fields of one group replaced."""
    groups = [
        group.model_copy(update=changes) if group.name == group_name else group
        for group in cluster.instance_groups
    ]
    return cluster.model_copy(update={"instance_groups": groups})
