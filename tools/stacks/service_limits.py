"""Changes that the services refuse, or that end nodes, though CloudFormation's schemas allow them.

Sources: SageMaker AI developer guide ("Updating SageMaker HyperPod cluster configuration", "Using an external
accounting database", "Continuous provisioning"), FSx's UpdateFileSystem, and the EKS user guide ("Update
existing cluster to new Kubernetes version").
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.stacks.replacements import KEPT, Template

CLUSTER = "AWS::SageMaker::Cluster"
CONTROL_PLANE = "AWS::EKS::Cluster"


@dataclass(frozen=True)
class Notice:
    """Something that a deployment would run into."""

    stack: str
    logical_id: str
    text: str
    is_certain: bool = True


def find_notices(stack: str, old: Template, new: Template) -> Iterator[Notice]:
    """Compare two templates of one stack."""
    for logical_id, before in old["Resources"].items():
        after = new["Resources"].get(logical_id)
        if after is None:
            if before["Type"] == "AWS::FSx::DataRepositoryAssociation":
                text = "the link to the bucket is deleted: nothing is imported or exported any more"
                yield Notice(stack, logical_id, text)
            continue
        was = before.get("Properties", {})
        now = after.get("Properties", {})
        if before.get("DeletionPolicy") in KEPT and after.get("DeletionPolicy") not in KEPT:
            text = f"{before['Type']} is no longer kept: from now on it is deleted with its stack"
            yield Notice(stack, logical_id, text, is_certain=False)
        if before["Type"] == CLUSTER:
            yield from (Notice(stack, logical_id, *text) for text in _cluster(was, now))
        if before["Type"] == CONTROL_PLANE:
            yield from (Notice(stack, logical_id, text) for text in _control_plane(was, now))
        if before["Type"] == "AWS::FSx::FileSystem":
            sizes = was.get("StorageCapacity", 0), now.get("StorageCapacity", 0)
            if sizes[1] < sizes[0]:
                text = f"FSx refuses to shrink a file system, here from {sizes[0]} to {sizes[1]} GiB"
                yield Notice(stack, logical_id, text)


def _control_plane(was: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    versions = was.get("Version"), now.get("Version")
    if not all(isinstance(version, str) for version in versions):
        return
    steps = [int(str(version).partition(".")[2]) for version in versions]
    if not 0 <= steps[1] - steps[0] <= 1:
        yield (
            f"EKS refuses to go from Kubernetes {versions[0]} to {versions[1]}: it goes up by one version at "
            "a time, and never down"
        )


def _cluster(was: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    modes = was.get("NodeProvisioningMode"), now.get("NodeProvisioningMode")
    if modes[0] != modes[1]:
        yield "HyperPod refuses to change NodeProvisioningMode (continuous_provisioning) of a cluster", True
    if _database(was) and not _database(now):
        yield "HyperPod refuses to go back from an accounting database to the controller's own", True
    groups = {group["InstanceGroupName"]: group for group in now.get("InstanceGroups", [])}
    scaled = [name for name, group in groups.items() if group.get("InstanceCount") == 0]
    if was != now and now.get("AutoScaling") and scaled:
        yield (
            f"CloudFormation sends 0 instances for {', '.join(scaled)}, which Karpenter scales: HyperPod may "
            "end nodes there, with their jobs. Deploy while these groups are empty",
            False,
        )
    for before in was.get("InstanceGroups", []):
        name = before["InstanceGroupName"]
        after = groups.get(name)
        if after is None:
            yield f"group {name} is gone: its nodes are terminated, with what is on their disks", True
            continue
        counts = before.get("InstanceCount"), after.get("InstanceCount")
        if counts[0] != counts[1]:
            yield f"group {name} changes from {counts[0]} to {counts[1]} instances", False
        types = before.get("InstanceType"), after.get("InstanceType")
        if types[0] != types[1]:
            yield (
                f"HyperPod refuses another type for group {name} ({types[0]} to {types[1]}): add a group "
                "with a new name and remove this one",
                True,
            )
        if before.get("CapacityRequirements") != after.get("CapacityRequirements"):
            yield (
                f"HyperPod refuses to change the capacity of group {name} (spot or on demand): add a group "
                "with a new name and remove this one",
                True,
            )
        if _volume_keys(before) != _volume_keys(after):
            yield (f"group {name} has another key for its volumes: its nodes keep the old one", False)


def _database(properties: dict[str, Any]) -> Any:
    return properties.get("Orchestrator", {}).get("Slurm", {}).get("AccountingDatabase")


def _volume_keys(group: dict[str, Any]) -> list[Any]:
    configs = [config.get("EbsVolumeConfig", {}) for config in group.get("InstanceStorageConfigs", [])]
    return [config["VolumeKmsKeyId"] for config in configs if "VolumeKmsKeyId" in config]


def describe_notice(notice: Notice) -> str:
    mark = "!!! WARNING" if notice.is_certain else "note"
    return f"{mark}: {notice.text}\n    {notice.logical_id} in {notice.stack}"
