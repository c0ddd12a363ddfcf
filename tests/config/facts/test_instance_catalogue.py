"""The catalogue is complete and agrees with SageMaker and EC2."""

from __future__ import annotations

import gzip
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.model import StringShape

from config.facts.instance_catalogue import INSTANCE_TYPES, instance_type

# EC2 does not describe this type. It also gives the device memory of Trainium2 another meaning.
NOT_DESCRIBED = "ml.p6e-gb200.36xlarge"


def sagemaker_enum(shape: str) -> set[str]:
    model = botocore.session.get_session().get_service_model("sagemaker")
    found = model.shape_for(shape)
    assert isinstance(found, StringShape)
    return set(found.enum)


@pytest.fixture(scope="module")
def ec2_types() -> dict[str, dict[str, Any]]:
    """Return the recorded DescribeInstanceTypes response in the moto package."""
    spec = find_spec("moto")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "ec2" / "resources" / "instance_types.json.gz"
    types: dict[str, dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))
    return types


def test_has_every_type_of_hyperpod() -> None:
    assert set(INSTANCE_TYPES) == sagemaker_enum("ClusterInstanceType")


def test_types_of_training_plans_match_sagemaker_s() -> None:
    planned = {name for name, found in INSTANCE_TYPES.items() if found.training_plan}
    assert sagemaker_enum("ReservedCapacityInstanceType") == planned


def network_gbps(network: dict[str, Any]) -> float:
    """Return the bandwidth from EC2's text, such as "8x 100 Gigabit"; for "Up to 25 Gigabit", the card's
    baseline.
    """
    if found := re.fullmatch(r"(?:(\d+)x )?([\d.]+) Gigabit", network["NetworkPerformance"]):
        return int(found[1] or 1) * float(found[2])
    (card,) = network["NetworkCards"]
    return float(card["BaselineBandwidthInGbps"])


@pytest.mark.parametrize("name", sorted(INSTANCE_TYPES.keys() - {NOT_DESCRIBED}))
def test_agrees_with_ec2(name: str, ec2_types: dict[str, dict[str, Any]]) -> None:
    ours = INSTANCE_TYPES[name]
    theirs = ec2_types[name.removeprefix("ml.")]
    network = theirs["NetworkInfo"]
    devices = theirs.get("GpuInfo", {}).get("Gpus") or theirs.get("NeuronInfo", {}).get(
        "NeuronDevices", []
    )
    assert ours.vcpus == theirs["VCpuInfo"]["DefaultVCpus"]
    assert ours.threads_per_core == theirs["VCpuInfo"]["DefaultThreadsPerCore"]
    assert ours.memory_gib == theirs["MemoryInfo"]["SizeInMiB"] / 1024
    assert [ours.architecture] == theirs["ProcessorInfo"]["SupportedArchitectures"]
    assert ours.num_network_cards == network["MaximumNetworkCards"]
    assert ours.addresses_per_interface == network["Ipv4AddressesPerInterface"]
    assert ours.num_efa == network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
    assert ours.network_gbps == network_gbps(network)
    assert ours.num_accelerators == sum(device["Count"] for device in devices)
    assert (ours.accelerator is None) == (not devices)
    if devices and ours.accelerator != "Trainium2":
        assert ours.accelerator_memory_gib == devices[0]["MemoryInfo"]["SizeInMiB"] // 1024


@pytest.mark.parametrize(
    ("name", "num_accelerators", "accelerator_memory_gib", "num_network_cards", "num_efa"),
    [
        ("ml.g5.8xlarge", 1, 22, 1, 1),
        ("ml.p4d.24xlarge", 8, 40, 4, 4),
        ("ml.p5.48xlarge", 8, 80, 32, 32),
        ("ml.p5en.48xlarge", 8, 141, 16, 16),
        ("ml.p6-b300.48xlarge", 8, 268, 17, 16),
        ("ml.p6e-gb200.36xlarge", 4, 185, 17, 8),
        ("ml.trn1.32xlarge", 16, 32, 8, 8),
        ("ml.trn2.48xlarge", 16, 96, 16, 16),
        ("ml.m5.12xlarge", 0, 0, 1, 0),
        ("ml.m5.2xlarge", 0, 0, 1, 0),
    ],
)
def test_facts_of_important_types(
    name: str,
    num_accelerators: int,
    accelerator_memory_gib: int,
    num_network_cards: int,
    num_efa: int,
) -> None:
    found = instance_type(name)
    assert found.num_accelerators == num_accelerators
    assert found.accelerator_memory_gib == accelerator_memory_gib
    assert found.num_network_cards == num_network_cards
    assert found.num_efa == num_efa


def test_facts_of_a_type_are_consistent() -> None:
    for found in INSTANCE_TYPES.values():
        assert (
            (found.accelerator is None)
            == (found.num_accelerators == 0)
            == (found.accelerator_memory_gib == 0)
        )
        assert 0 <= found.num_efa <= found.num_network_cards
        assert found.threads_per_core == 1 or found.architecture == "x86_64"
        assert found.vcpus % found.threads_per_core == 0


def test_types_that_reach_lustre_over_efa() -> None:
    families = {found.name.split(".")[1] for found in INSTANCE_TYPES.values() if found.lustre_efa}
    assert families >= {"p5", "p5e", "p5en", "p6-b200", "p6-b300", "g6", "g6e", "trn1"}
    assert not families & {"p4d", "p4de", "g5", "g4dn", "c5n", "i3en", "trn2", "m5"}


def test_an_unknown_type_is_reported_with_a_suggestion() -> None:
    with pytest.raises(
        ValueError, match=r"got p5\.48xlarge; HyperPod offers 209 types.*; set ml\.p5\.48xlarge$"
    ):
        instance_type("p5.48xlarge")
    with pytest.raises(ValueError, match=r"; set one of them$"):
        instance_type("mainframe")
