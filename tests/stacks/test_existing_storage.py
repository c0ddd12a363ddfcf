"""Templates of a cluster whose storage exists already."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.stacks.intrinsics import Evaluator
from tests.stacks.synthesized import Templates, load, read_templates, resources, synthesize

LUSTRE = "fs-0123456789abcdef0"
HOME = "fs-0fedcba9876543210"
BUCKET = "lab-proteins"
LUSTRE_EXISTING = {"existing": {"file_system_id": LUSTRE, "mount_name": "abcdev4v"}}
FILES = {"slurm": "clusters/slurm.yaml", "eks": "clusters/eks.yaml"}


@cache
def stacks(kind: str, *, with_bucket: bool = True) -> Templates:
    storage: dict[str, Any] = {"lustre": LUSTRE_EXISTING}
    if kind == "slurm":
        storage["home"] = {"existing": HOME}
    if with_bucket:
        storage["data_bucket"] = {"existing": BUCKET}
    return read_templates(synthesize(load(FILES[kind], storage=storage)))


def storage_of(kind: str, **options: Any) -> dict[str, Any]:
    (found,) = (stack for name, stack in stacks(kind, **options).items() if "Storage" in name)
    return found


@pytest.mark.parametrize("kind", FILES)
def test_creates_neither_file_systems_nor_a_data_bucket_nor_a_second_link(kind: str) -> None:
    storage = storage_of(kind)
    assert not resources(storage, "AWS::FSx::FileSystem")
    assert not resources(storage, "AWS::FSx::DataRepositoryAssociation")
    assert not [name for name in resources(storage, "AWS::S3::Bucket") if name.startswith("Data")]
    # The file system still writes to it.
    assert resources(storage, "AWS::Logs::LogGroup")


def test_an_existing_file_system_is_linked_to_a_new_bucket() -> None:
    (link,) = resources(
        storage_of("slurm", with_bucket=False), "AWS::FSx::DataRepositoryAssociation"
    ).values()
    assert link["Properties"]["FileSystemId"] == LUSTRE


def test_nodes_mount_the_existing_file_systems() -> None:
    cluster = load(FILES["slurm"])
    evaluate = Evaluator(stacks("slurm"), cluster.region)
    (hyperpod,) = resources(
        stacks("slurm")["SlurmHyperPodStack"], "AWS::SageMaker::Cluster"
    ).values()
    for group in evaluate(hyperpod["Properties"]["InstanceGroups"]):
        mounts = group["InstanceStorageConfigs"]
        (lustre,) = (mount["FsxLustreConfig"] for mount in mounts if "FsxLustreConfig" in mount)
        (home,) = (mount["FsxOpenZfsConfig"] for mount in mounts if "FsxOpenZfsConfig" in mount)
        assert lustre["DnsName"] == f"{LUSTRE}.fsx.{cluster.region}.amazonaws.com"
        assert lustre["MountName"] == "abcdev4v"
        assert home["DnsName"] == f"{HOME}.fsx.{cluster.region}.amazonaws.com"


def test_pods_mount_the_existing_file_system() -> None:
    text = str(stacks("eks")["EksHyperPodStack"])
    assert LUSTRE in text and "abcdev4v" in text
