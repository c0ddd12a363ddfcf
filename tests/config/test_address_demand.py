"""Address counts follow the documentation of FSx and HyperPod."""

from __future__ import annotations

from typing import Any

import pytest

from config.address_demand import address_takers
from config.cluster import control_plane_zones
from config.cluster_kinds import KINDS
from tests.config.cluster_documents import document


def demand(base: str, changes: dict[str, Any] | None = None) -> dict[str, int]:
    made = document(base, changes)
    takers = address_takers(KINDS[made["scheduler"]].model_validate(made))
    return {zone: taken.total() for zone, taken in takers.items()}


def test_small_cluster() -> None:
    # One data server, one metadata server, one controller, two workers.
    assert demand("small") == {"usw2-az2": 1 + 1 + 1 + 2}


def test_p5_cluster() -> None:
    # One server with EFA for 9600 GiB, one for 12,000 metadata IOPS, OpenZFS, 15 endpoints, and nodes.
    assert demand("p5") == {"use1-az6": 1 + 1 + 4 + 15 + 1 + 2 + 8 * 32}


def test_efa_only_nodes_have_one_address() -> None:
    assert demand("p5", {"instance_groups[p5].efa_only": True}) == {
        "use1-az6": 1 + 1 + 4 + 15 + 1 + 2 + 8
    }


def test_groups_count_in_their_zone_and_the_database_in_two() -> None:
    changes = {
        "instance_groups[workers].availability_zone_id": "usw2-az1",
        "accounting_database": {},
    }
    assert demand("existing", changes) == {"usw2-az4": 1 + 1 + 1 + 3, "usw2-az1": 2 + 3}


def test_small_cluster_on_eks() -> None:
    # One data server and one metadata server. For 28 pods an m5.2xlarge needs two interfaces and a g5.8xlarge
    # one, each with an address of its own. The control plane has its own subnets.
    assert demand("eks") == {"usw2-az2": 1 + 1 + (28 + 2) + 2 * (28 + 1)}


def test_p5_cluster_on_eks() -> None:
    # 16 endpoints, including those of EKS and pod identities; a P5 has 31 network cards after the first.
    assert demand("eks-p5") == {"use1-az6": 1 + 1 + 16 + 2 * (28 + 1) + 8 * (28 + 1 + 31)}


def test_efa_only_nodes_on_eks_keep_the_addresses_of_pods() -> None:
    assert demand("eks-p5", {"instance_groups[p5].efa_only": True}) == {
        "use1-az6": 1 + 1 + 16 + 2 * (28 + 1) + 8 * (28 + 1)
    }


def test_control_plane_shares_existing_subnets() -> None:
    assert demand("eks-existing") == {
        "usw2-az4": 1 + 1 + 6 + (28 + 2) + 2 * (28 + 1),
        "usw2-az1": 6,
    }


def test_all_nodes_that_karpenter_may_add_count() -> None:
    changes = {
        "instance_groups[workers].num_instances": 0,
        "instance_groups[workers].max_instances": 5,
    }
    assert demand("eks", changes) == {"usw2-az2": 1 + 1 + (28 + 2) + 5 * (28 + 1)}


@pytest.mark.parametrize(
    ("zones", "chosen"),
    [
        (["use1-az6", "use1-az4"], ["use1-az6", "use1-az4"]),
        (["use1-az3", "use1-az4", "use1-az6"], ["use1-az4", "use1-az6"]),
        (["use1-az1", "use1-az2", "use1-az4"], ["use1-az1", "use1-az2"]),
    ],
)
def test_zones_of_the_control_plane(zones: list[str], chosen: list[str]) -> None:
    made = document("eks-p5", {"network.availability_zone_ids": zones})
    assert control_plane_zones(KINDS["eks"].model_validate(made)) == chosen


@pytest.mark.parametrize(
    ("capacity_gib", "throughput", "efa", "metadata_iops", "servers"),
    [
        (1200, 250, False, None, 1 + 1),
        (9600, 250, False, None, 4 + 1),
        (48000, 250, False, None, 20 + 2),
        (9600, 500, True, None, 1 + 1),
        (38400, 125, True, 24000, 1 + 2),
        (9600, 1000, True, 1500, 2 + 1),
    ],
)
def test_lustre_servers(
    capacity_gib: int, throughput: int, efa: bool, metadata_iops: int | None, servers: int
) -> None:
    lustre = {
        "capacity_gib": capacity_gib,
        "throughput_mbps_per_tib": throughput,
        "efa": efa,
        "metadata_iops": metadata_iops,
    }
    assert demand("small", {"storage.lustre": lustre})["usw2-az2"] == servers + 3
