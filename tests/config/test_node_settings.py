"""Settings of nodes depend only on the cluster file, and nodes can read them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from config.node_settings import node_settings, node_settings_text
from config.reading.loader import load_slurm_cluster
from config.slurm_cluster import SlurmCluster
from config.storage import EFA_CLIENT_SHA256, EFA_CLIENT_URL
from node_setup.settings import Settings, read_section
from tests.config.cluster_documents import document
from tests.config.test_good_clusters import EDGES, SHIPPED


def rendered(base: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    return node_settings(SlurmCluster.model_validate(document(base, changes)))


def group_of(instance_type: str) -> dict[str, Any]:
    made: dict[str, Any] = rendered(
        "small", {"instance_groups[workers].instance_type": instance_type}
    )
    return made["instance_groups"]["workers"]


def test_settings_of_the_small_cluster() -> None:
    assert rendered("small") == {
        "cluster_name": "esm2-slurm",
        "region": "us-west-2",
        "lustre_mount_path": "/fsx",
        "shared_path": "/fsx",
        "bucket_mount_path": None,
        "lustre_efa": None,
        "home_mount_path": None,
        "instance_groups": {
            "controller": {
                "role": "controller",
                "instance_type": "ml.m5.large",
                "partition": None,
                "num_gpus": 0,
                "num_neuron_devices": 0,
                "num_efa_interfaces": 0,
                "weight": None,
                "feature": None,
            },
            "workers": {
                "role": "worker",
                "instance_type": "ml.g5.8xlarge",
                "partition": "gpu",
                "num_gpus": 1,
                "num_neuron_devices": 0,
                "num_efa_interfaces": 1,
                "weight": None,
                "feature": None,
            },
        },
        "groups": [],
        "users": [],
        "accounts": [],
        "proxy": {},
        "scheduling": None,
        "external_accounting": False,
        "container_storage": "local_disk",
        "pam_slurm_adopt": False,
        "metrics": True,
        "cloudwatch_agent": False,
        "health_check_prolog": True,
        "workload_code": True,
        "studio": None,
        "downloads": "internet",
    }


def test_switches_of_the_file_reach_the_nodes() -> None:
    small = rendered("small")
    other = rendered(
        "existing",
        {
            "storage.lustre.mount_path": "/lustre",
            "storage.home": {},
            "accounting_database": {},
            "prometheus": False,
            "node_setup": {
                "container_storage": "unchanged",
                "pam_slurm_adopt": True,
                "cloudwatch_agent": True,
                "health_check_prolog": False,
                "workload_code": False,
                "downloads": "artifact_bucket",
            },
        },
    )
    assert {key: other[key] for key in small if other[key] != small[key]} == {
        "lustre_mount_path": "/lustre",
        "shared_path": "/lustre",
        "home_mount_path": "/home",
        "external_accounting": True,
        "container_storage": "unchanged",
        "pam_slurm_adopt": True,
        "metrics": False,
        "cloudwatch_agent": True,
        "health_check_prolog": False,
        "workload_code": False,
        "downloads": "artifact_bucket",
    }


def test_users_their_groups_and_accounts() -> None:
    made = rendered("p5")
    # The last group is rosalind's own.
    assert made["groups"] == [{"name": "proteins", "gid": 3000}, {"name": "rosalind", "gid": 2002}]
    ada, rosalind = made["users"]
    (key,) = ada.pop("ssh_keys")
    assert key.startswith("ssh-ed25519 AAAA") and key.endswith(" ada@example.com")
    assert ada == {
        "name": "ada",
        "uid": 2001,
        "group": "proteins",
        "groups": [],
        "account": "esm2",
        "admin": True,
    }
    assert (rosalind["group"], rosalind["groups"]) == ("rosalind", ["proteins"])
    unlimited = dict.fromkeys(
        ("max_jobs", "max_submitted_jobs", "max_nodes", "max_gpus", "default_qos")
    ) | {"qos": []}
    assert made["accounts"] == [
        {"name": "proteins", "parent": None, "fairshare": 1, **unlimited},
        {"name": "esm2", "parent": "proteins", "fairshare": 3, **unlimited},
        {"name": "structure", "parent": "proteins", "fairshare": 1, **unlimited},
    ]


@pytest.mark.parametrize(
    ("instance_type", "gpus", "neuron", "efa"),
    [
        ("ml.p5.48xlarge", 8, 0, 32),
        ("ml.p4d.24xlarge", 8, 0, 4),
        ("ml.g5.xlarge", 1, 0, 0),
        ("ml.p6e-gb200.36xlarge", 4, 0, 8),
        ("ml.trn1.32xlarge", 0, 16, 8),
        ("ml.trn2.3xlarge", 0, 1, 1),
        ("ml.c6i.32xlarge", 0, 0, 1),
        ("ml.m5.12xlarge", 0, 0, 0),
    ],
)
def test_hardware_comes_from_the_catalogue(
    instance_type: str, gpus: int, neuron: int, efa: int
) -> None:
    made = group_of(instance_type)
    found = (made["num_gpus"], made["num_neuron_devices"], made["num_efa_interfaces"])
    assert found == (gpus, neuron, efa)


def test_the_order_of_keys_does_not_matter() -> None:
    one = document("p5")
    other = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value
        for key, value in reversed(one.items())
    }
    texts = {node_settings_text(SlurmCluster.model_validate(made)) for made in (one, other)}
    assert len(texts) == 1


def test_text_is_sorted_and_ends_with_a_newline() -> None:
    text = node_settings_text(load_slurm_cluster(Path("clusters/slurm-p5.yaml")))
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


@pytest.mark.parametrize(
    "made",
    [
        *(
            pytest.param(load_slurm_cluster(path), id=path.name)
            for path in SHIPPED
            if path.name.startswith("slurm")
        ),
        *(
            pytest.param(SlurmCluster.model_validate(document(*edge)), id=name)
            for name, edge in EDGES.items()
        ),
    ],
)
def test_nodes_read_all_settings(made: SlurmCluster, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(node_settings_text(made))
    read = json.loads(json.dumps(dataclasses.asdict(read_section(path, Settings))))
    assert read == node_settings(made)


def test_nodes_get_the_address_of_the_efa_client_if_the_file_system_accepts_efa() -> None:
    efa = {"capacity_gib": 9600, "throughput_mbps_per_tib": 500, "efa": True}
    made = rendered("small", {"storage.lustre": efa})
    assert made["lustre_efa"] == {"url": EFA_CLIENT_URL, "sha256": EFA_CLIENT_SHA256}
