"""The tags that every resource of a cluster carries."""

from __future__ import annotations

from config.cluster import Cluster

PROJECT_TAG, PROJECT = "project", "hyperpod-esm2"
CLUSTER_TAG = "hyperpod-cluster"
"""Names the cluster; the budget filters by it, so it must be activated as a cost allocation tag (Billing)."""


def tags_of(cluster: Cluster) -> dict[str, str]:
    """The file's own tags and ours, which win."""
    return {**cluster.tags, PROJECT_TAG: PROJECT, CLUSTER_TAG: cluster.name}
