"""Changes that the services refuse, or that end nodes, although CloudFormation's schemas allow them.

Sources: SageMaker AI developer guide ("Updating SageMaker HyperPod cluster configuration", "Using an external
accounting database", "Continuous provisioning"), FSx's UpdateFileSystem, and the EKS user guide ("Update
existing cluster to new Kubernetes version").
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tools.stacks.replacements import FSX, KEPT, Template

CLUSTER = "AWS::SageMaker::Cluster"
CONTROL_PLANE = "AWS::EKS::Cluster"


@dataclass(frozen=True)
class Notice:
    """Change that a service refuses, or that has a consequence for nodes or data."""

    stack: str
    logical_id: str
    text: str
    is_certain: bool = True
    """Whether the change is refused or loses data for certain."""


class _Consequence(NamedTuple):
    """Text of a notice."""

    text: str
    is_certain: bool = True


def find_notices(stack: str, old: Template, new: Template) -> Iterator[Notice]:
    """Compare two templates of one stack."""
    for logical_id, before in old["Resources"].items():
        after = new["Resources"].get(logical_id)
        found = _deletion(before) if after is None else _update(before, after)
        for text, is_certain in found:
            yield Notice(stack, logical_id, text, is_certain)


def _deletion(before: dict[str, Any]) -> Iterator[_Consequence]:
    if before["Type"] == "AWS::FSx::DataRepositoryAssociation":
        yield _Consequence(
            "the link to the bucket is deleted: nothing is imported or exported any more"
        )


def _update(before: dict[str, Any], after: dict[str, Any]) -> Iterator[_Consequence]:
    was = before.get("Properties", {})
    now = after.get("Properties", {})
    if before.get("DeletionPolicy") in KEPT and after.get("DeletionPolicy") not in KEPT:
        text = f"{before['Type']} is no longer kept: from now on it is deleted with its stack"
        yield _Consequence(text, is_certain=False)
    if before["Type"] == CLUSTER:
        yield from _cluster(was, now)
    if before["Type"] == CONTROL_PLANE:
        yield from _control_plane(was, now)
    if before["Type"] == FSX:
        yield from _file_system(was, now)


def _file_system(was: dict[str, Any], now: dict[str, Any]) -> Iterator[_Consequence]:
    old_gib = was.get("StorageCapacity", 0)
    new_gib = now.get("StorageCapacity", 0)
    if new_gib < old_gib:
        yield _Consequence(
            f"FSx refuses to shrink a file system, here from {old_gib} to {new_gib} GiB"
        )


def _control_plane(was: dict[str, Any], now: dict[str, Any]) -> Iterator[_Consequence]:
    old = was.get("Version")
    new = now.get("Version")
    if not (isinstance(old, str) and isinstance(new, str)):
        return
    if not 0 <= _minor(new) - _minor(old) <= 1:
        yield _Consequence(
            f"EKS refuses to go from Kubernetes {old} to {new}: it goes up by one version at a time, and"
            " never down"
        )


def _minor(version: str) -> int:
    """Return the minor version, which is 34 for 1.34."""
    return int(version.partition(".")[2])


def _cluster(was: dict[str, Any], now: dict[str, Any]) -> Iterator[_Consequence]:
    if was.get("NodeProvisioningMode") != now.get("NodeProvisioningMode"):
        yield _Consequence(
            "HyperPod refuses to change NodeProvisioningMode (continuous_provisioning) of a cluster"
        )
    if _database(was) and not _database(now):
        yield _Consequence(
            "HyperPod refuses to go back from an accounting database to the controller's own"
        )
    groups = {group["InstanceGroupName"]: group for group in now.get("InstanceGroups", [])}
    if scaled := _set_to_zero(was, now):
        yield _Consequence(
            f"CloudFormation sends 0 instances for {', '.join(scaled)}, which Karpenter scales: HyperPod may"
            " end nodes there, with their jobs. `make deploy` refuses this unless these groups are empty",
            is_certain=False,
        )
    for before in was.get("InstanceGroups", []):
        after = groups.get(before["InstanceGroupName"])
        yield from _group(before, after)


def _set_to_zero(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the groups that Karpenter scales and that an update of the cluster would set to 0."""
    if was == now or not now.get("AutoScaling"):
        return []
    return [
        group["InstanceGroupName"]
        for group in now.get("InstanceGroups", [])
        if group.get("InstanceCount") == 0
    ]


def groups_set_to_zero(old: Template, new: Template) -> list[str]:
    """Return Karpenter's groups that the update of a stack would set to 0."""
    return [
        name
        for logical_id, before in old["Resources"].items()
        if before["Type"] == CLUSTER and logical_id in new["Resources"]
        for name in _set_to_zero(
            before.get("Properties", {}), new["Resources"][logical_id].get("Properties", {})
        )
    ]


def _group(before: dict[str, Any], after: dict[str, Any] | None) -> Iterator[_Consequence]:
    name = before["InstanceGroupName"]
    instead = "add a group with a new name and remove this one"
    if after is None:
        yield _Consequence(
            f"group {name} is gone: its nodes are terminated, with what is on their disks"
        )
        return
    old_count = before.get("InstanceCount")
    new_count = after.get("InstanceCount")
    if old_count != new_count:
        text = f"group {name} changes from {old_count} to {new_count} instances"
        yield _Consequence(text, is_certain=False)
    old_type = before.get("InstanceType")
    new_type = after.get("InstanceType")
    old_types = before.get("InstanceRequirements", {}).get("InstanceTypes")
    new_types = after.get("InstanceRequirements", {}).get("InstanceTypes")
    if old_types and new_types and old_types != new_types:
        yield _Consequence(
            f"group {name} starts nodes of {', '.join(new_types)} from now on, no longer of "
            f"{', '.join(old_types)}; AWS does not document what becomes of nodes of other types",
            is_certain=False,
        )
    elif bool(old_types) != bool(new_types):
        yield _Consequence(
            f"group {name} changes between instance_type and instance_types, which AWS does not document: "
            f"{instead}",
            is_certain=False,
        )
    elif old_type != new_type:
        yield _Consequence(
            f"HyperPod refuses another type for group {name} ({old_type} to {new_type}): {instead}"
        )
    if before.get("CapacityRequirements") != after.get("CapacityRequirements"):
        yield _Consequence(
            f"HyperPod refuses to change the capacity of group {name} (spot or on demand): {instead}"
        )
    if _volume_keys(before) != _volume_keys(after):
        text = f"group {name} has another key for its volumes: its nodes keep the old one"
        yield _Consequence(text, is_certain=False)


def _database(properties: dict[str, Any]) -> Any:
    """Return the accounting database of a cluster, if it has one."""
    return properties.get("Orchestrator", {}).get("Slurm", {}).get("AccountingDatabase")


def _volume_keys(group: dict[str, Any]) -> list[Any]:
    """Return the keys of the volumes of a group's nodes."""
    configs = [
        config.get("EbsVolumeConfig", {}) for config in group.get("InstanceStorageConfigs", [])
    ]
    return [config["VolumeKmsKeyId"] for config in configs if "VolumeKmsKeyId" in config]


def describe_notice(notice: Notice) -> str:
    mark = "!!! WARNING" if notice.is_certain else "note"
    return f"{mark}: {notice.text}\n    {notice.logical_id} in {notice.stack}"
