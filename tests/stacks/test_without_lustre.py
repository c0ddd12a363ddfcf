"""Templates of a Slurm cluster whose files are on OpenZFS and in the data bucket."""

from __future__ import annotations

from functools import cache
from typing import Any

from config.node_settings import node_settings
from config.slurm_cluster import SlurmCluster
from stacks.remaining_costs import remaining_costs
from tests.stacks.intrinsics import Evaluator
from tests.stacks.synthesized import Templates, load, only, read_templates, resources, synthesize
from tools.cost.bill import Usage
from tools.cost.cluster_items import cluster_items

STORAGE = {
    "lustre": "none",
    "home": {"capacity_gib": 512},
    "data_bucket": {"mount_path": "/data"},
    "kms": "create",
}
OBSERVABILITY = {"emails": ["hpc@example.com"]}
KINDS = ("Network", "Storage", "HyperPod", "Observability")


@cache
def cluster() -> SlurmCluster:
    found: SlurmCluster = load("clusters/slurm.yaml", storage=STORAGE, observability=OBSERVABILITY)
    return found


@cache
def stacks() -> Templates:
    return read_templates(synthesize(cluster()))


def of_type(kind: str) -> list[dict[str, Any]]:
    return [found for stack in stacks().values() for found in resources(stack, kind).values()]


def test_the_only_file_system_has_the_homes() -> None:
    (system,) = of_type("AWS::FSx::FileSystem")
    assert system["Properties"]["FileSystemType"] == "OPENZFS"
    assert of_type("AWS::FSx::DataRepositoryAssociation") == []
    metrics = [alarm["Properties"].get("MetricName") for alarm in of_type("AWS::CloudWatch::Alarm")]
    assert "UsedStorageCapacity" in metrics and "FreeDataStorageCapacity" not in metrics
    for group in only(stacks()["SlurmHyperPodStack"], "AWS::SageMaker::Cluster")["InstanceGroups"]:
        mounts = [next(iter(config)) for config in group["InstanceStorageConfigs"]]
        assert [name for name in mounts if name.startswith("Fsx")] == ["FsxOpenZfsConfig"]


def test_nodes_read_the_bucket_and_add_files() -> None:
    evaluate = Evaluator(stacks(), cluster().region)
    roles = [
        evaluate(role["Properties"])
        for role in resources(stacks()["SlurmHyperPodStack"], "AWS::IAM::Role").values()
        if "Role of HyperPod" in role["Properties"].get("Description", "")
    ]
    assert len(roles) == 2
    for role in roles:
        statements = {
            statement["Sid"]: statement
            for policy in role["Policies"]
            for statement in policy["PolicyDocument"]["Statement"]
        }
        assert "s3:PutObject" in statements["ReadAndWriteData"]["Action"]
        assert "s3:DeleteObject" not in statements["ReadAndWriteData"]["Action"]
        assert statements["EncryptData"]["Action"] == "kms:GenerateDataKey"


def test_nodes_keep_code_and_images_below_the_homes() -> None:
    settings = node_settings(cluster())
    names = ("lustre_mount_path", "shared_path", "home_mount_path", "bucket_mount_path")
    assert [settings[name] for name in names] == [None, "/home/shared", "/home", "/data"]


def test_nothing_bills_for_lustre() -> None:
    items = [item.dimensions for item in cluster_items(cluster(), Usage())]
    assert "FSx for OpenZFS (512 GiB)" in items
    assert not [what for what in [*items, *remaining_costs(cluster())] if "Lustre" in what]
