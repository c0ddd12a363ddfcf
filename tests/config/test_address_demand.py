"""Addresses are counted as the documentation of FSx and HyperPod says."""

from __future__ import annotations

from typing import Any

import pytest

from config.address_demand import address_demand
from config.cluster import SlurmCluster
from tests.config.cluster_documents import document


def demand(base: str, changes: dict[str, Any] | None = None) -> dict[str, int]:
    return dict(address_demand(SlurmCluster.model_validate(document(base, changes))))


def test_small_cluster() -> None:
    # A data server, a metadata server, a controller, two workers.
    assert demand("small") == {"usw2-az2": 1 + 1 + 1 + 2}


def test_p5_cluster() -> None:
    # 9600 GiB on one server with EFA, 12,000 metadata IOPS on one; OpenZFS; 14 endpoints; nodes.
    assert demand("p5") == {"use1-az6": 1 + 1 + 4 + 14 + 1 + 2 + 8 * 32}


def test_efa_only_leaves_one_address() -> None:
    assert demand("p5", {"instance_groups[p5].efa_only": True}) == {"use1-az6": 1 + 1 + 4 + 14 + 1 + 2 + 8}


def test_groups_count_in_their_zone_and_the_database_in_two() -> None:
    changes = {"instance_groups[workers].availability_zone_id": "usw2-az1", "accounting_database": {}}
    assert demand("existing", changes) == {"usw2-az4": 1 + 1 + 1 + 3, "usw2-az1": 2 + 3}


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
