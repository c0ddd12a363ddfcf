"""A cluster file is read as its own kind, and commands for the other kind reject it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from config import resource_names
from config.cluster_kinds import KINDS, AnyCluster, kind_meant
from config.eks_cluster import EksCluster
from config.reading.loader import load_cluster, load_eks_cluster, load_slurm_cluster
from config.resource_names import stack_names
from config.slurm_cluster import SlurmCluster
from tests.config.cluster_documents import document
from tests.config.test_good_clusters import SHIPPED

SLURM = Path("clusters/slurm.yaml")
EKS = Path("clusters/eks.yaml")


def test_each_kind_is_read_as_its_own() -> None:
    assert isinstance(load_slurm_cluster(SLURM), SlurmCluster)
    assert isinstance(load_eks_cluster(EKS), EksCluster)


def test_commands_for_slurm_reject_eks() -> None:
    with pytest.raises(ValueError) as caught:
        load_slurm_cluster(EKS)
    assert str(caught.value) == (
        "clusters/eks.yaml: scheduler: got eks; this command requires scheduler: slurm;"
        " set a cluster file for it, such as clusters/slurm.yaml"
    )


def test_commands_for_eks_reject_slurm() -> None:
    with pytest.raises(
        ValueError, match=r"scheduler: got slurm; this command requires scheduler: eks; "
    ):
        load_eks_cluster(SLURM)


@pytest.mark.parametrize(
    ("made", "scheduler"),
    [
        ({"scheduler": "eks"}, "eks"),
        ({"scheduler": "EKS"}, "eks"),
        ({"scheduler": "slrum", "kubernetes": {}}, "slurm"),
        ({"sheduler": "eks"}, "eks"),
        ({"scheduler": "nomad", "kubernetes": {}}, "eks"),
        ({"scheduler": 7, "access": {}}, "slurm"),
        ({"task_governance": {}, "kubernetes": {}, "access": {}}, "eks"),
        ({}, "slurm"),
    ],
)
def test_finds_the_intended_kind(made: dict[str, Any], scheduler: str) -> None:
    assert kind_meant(made) is KINDS[scheduler]


def test_each_kind_has_its_own_scheduler() -> None:
    for scheduler, base in (("slurm", "small"), ("eks", "eks")):
        assert KINDS[scheduler].model_validate(document(base)).scheduler == scheduler


def names(cluster: AnyCluster) -> list[str]:
    """Return the names of all resources that are unique per account or region."""
    account = "123456789012"
    return [
        cluster.name,
        *stack_names(cluster),
        resource_names.artifact_bucket(cluster, account),
        resource_names.ResourceNames(cluster).image_repository,
        resource_names.ResourceNames(cluster).shell_document,
        resource_names.ResourceNames(cluster).control_plane_log_group,
        resource_names.ResourceNames(cluster).lustre_log_group,
        resource_names.ResourceNames(cluster).node_log_group,
        resource_names.ResourceNames(cluster).metrics_log_group,
        resource_names.ResourceNames(cluster).key_alias,
    ]


def test_shipped_clusters_share_no_name() -> None:
    """Names differ even if all clusters are set to the same region."""
    of_all = Counter(name for path in SHIPPED for name in names(load_cluster(path)))
    assert len(SHIPPED) == 6
    assert {name for name, number in of_all.items() if number > 1} == set()
