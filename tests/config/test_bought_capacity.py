"""Weights of Slurm's nodes, by how the capacity of their group is bought."""

from __future__ import annotations

from typing import Any

import pytest

from config.node_settings import node_settings
from config.slurm_cluster import SlurmCluster, node_weights
from tests.config.cluster_documents import document

PLAN = "arn:aws:sagemaker:us-west-2:123456789012:training-plan/esm2-p5"


def cluster_of(*changes: dict[str, Any]) -> SlurmCluster:
    """The small cluster with a group of workers for each set of changes, all in one partition."""
    made = document("small")
    [workers] = [group for group in made["instance_groups"] if group["role"] == "worker"]
    made["instance_groups"].remove(workers)
    made["instance_groups"] += [
        {**workers, "name": f"group-{number}", **changed} for number, changed in enumerate(changes)
    ]
    return SlurmCluster.model_validate(made)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (({}, {}), []),
        (({"capacity": "spot"}, {"capacity": "spot"}), []),
        (({"capacity": "spot"}, {}, {"training_plan_arn": PLAN}), [30, 20, 10]),
        (({"capacity": "spot", "weight": 15}, {}), [15, 20]),
        (({"weight": 5}, {}), [5, 20]),
        # Equal weights, but different features.
        (({"capacity": "spot", "weight": 20}, {}), [20, 20]),
    ],
)
def test_weights_order_groups_that_differ(
    groups: tuple[dict[str, Any], ...], expected: list[int]
) -> None:
    assert list(node_weights(cluster_of(*groups)).values()) == expected


def test_nodes_get_weights_and_features() -> None:
    groups = node_settings(cluster_of({"capacity": "spot"}, {}))["instance_groups"]
    found = {name: (group["weight"], group["feature"]) for name, group in groups.items()}
    assert found == {
        "controller": (None, None),
        "group-0": (30, "spot"),
        "group-1": (20, "on_demand"),
    }
