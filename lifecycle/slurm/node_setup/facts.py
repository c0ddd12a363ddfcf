"""Facts about this node, from the files that the platform writes before any script runs."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.settings import InstanceGroup, Role, Settings

RESOURCE_CONFIG = "/opt/ml/config/resource_config.json"
PROVISIONING_PARAMETERS = "/opt/ml/config/provisioning_parameters.json"
SECONDS_FOR_PLATFORM_FILES = 300
"""Time limit. Copies on workers lag behind the controller's, and a node's own entry takes minutes."""


@dataclass(frozen=True)
class NodeFacts:
    group: str
    role: Role
    hardware: InstanceGroup
    instance_id: str
    address: str
    """IPv4 address in the cluster's network."""
    host_name: str
    """Short; also the node's name in Slurm."""
    controller_addresses: tuple[str, ...]
    """Controllers, the primary one first. A worker's copy may be stale and name none or a replaced one."""

    @property
    def is_primary_controller(self) -> bool:
        return self.role == "controller" and self.controller_addresses[:1] == (self.address,)


@dataclass(frozen=True)
class Instance:
    """One entry of resource_config.json."""

    group: str
    instance_id: str
    address: str


class PlatformFiles(NamedTuple):
    """Contents of the platform's files, and this node's entry in the first."""

    resource_config: dict[str, Any]
    parameters: dict[str, Any]
    """provisioning_parameters.json; empty if the file is missing."""
    this_node: Instance


def read_facts(host: Host, settings: Settings) -> NodeFacts:
    """Find this node in the platform's list by its address, and its role by its group.

    Running services do not show the role, because scripts may run before Slurm starts.

    Raises:
        SetupError: if the platform's files stay unreadable or without this node, or contradict the settings.
    """
    addresses = host.run("hostname", "--all-ip-addresses").split()
    platform = host.wait_for(
        lambda: _find(host, addresses),
        timeout_seconds=SECONDS_FOR_PLATFORM_FILES,
        what="the platform's files do not say what this node is",
        remedy=f"look at {RESOURCE_CONFIG}; replace the node if it stays so",
    )
    this = platform.this_node
    group = settings.instance_groups.get(this.group)
    if group is None:
        raise SetupError(
            f"group {this.group} of this node is unknown; the cluster file has "
            f"{', '.join(sorted(settings.instance_groups))}",
            "these scripts belong to another cluster file: `make deploy` with the one that has the group",
        )
    _cross_check(platform.parameters, this.group, group.role)
    return NodeFacts(
        group=this.group,
        role=group.role,
        hardware=group,
        instance_id=this.instance_id,
        address=this.address,
        host_name=host.run("hostname", "--short").strip(),
        controller_addresses=_controllers(platform.resource_config, settings),
    )


def resource_config(host: Host) -> dict[str, Any]:
    """Return the platform's list of groups and nodes. The controller's is up to date.

    Raises:
        SetupError: if the platform's file cannot be read.
    """
    return _read_json(host, os.environ.get("SAGEMAKER_RESOURCE_CONFIG_PATH", RESOURCE_CONFIG))


def addresses_of_role(host: Host, settings: Settings, *roles: Role) -> frozenset[str]:
    """Return the addresses of nodes in groups of these roles. The controller's list is up to date.

    Raises:
        SetupError: if the platform's file cannot be read.
    """
    groups = {name for name, group in settings.instance_groups.items() if group.role in roles}
    in_groups = [
        instance for instance in _instances(resource_config(host)) if instance.group in groups
    ]
    return frozenset(instance.address for instance in in_groups if instance.address)


def _find(host: Host, addresses: list[str]) -> PlatformFiles:
    path = os.environ.get("SAGEMAKER_RESOURCE_CONFIG_PATH", RESOURCE_CONFIG)
    config = _read_json(host, path)
    try:
        found = [instance for instance in _instances(config) if instance.address in addresses]
    except (KeyError, TypeError, AttributeError) as error:
        raise SetupError(
            f"{path} has another shape than HyperPod's: {type(error).__name__} {error}",
            "these scripts are older than the platform: update this repository, and `make deploy`",
        ) from None
    groups = sorted({instance.group for instance in found})
    if len(groups) > 1:
        raise SetupError(
            f"{path} lists this node's address {found[0].address} in several groups: {', '.join(groups)}",
            "one entry belongs to a removed node; the platform's next copy of the file drops it",
        )
    if not found:
        raise SetupError(
            f"{path} has none of this node's addresses {', '.join(addresses)}",
            "the copy is stale, or the node has left the cluster: replace it if it stays so",
        )
    # Clusters created through the API may have no such file.
    parameters: dict[str, Any] = {}
    if host.path(PROVISIONING_PARAMETERS).exists():
        parameters = _read_json(host, PROVISIONING_PARAMETERS)
    # The last of several entries counts: a replaced node's address may belong to its successor.
    return PlatformFiles(resource_config=config, parameters=parameters, this_node=found[-1])


def _read_json(host: Host, path: str) -> dict[str, Any]:
    file = host.path(path)
    remedy = "the platform writes it before this script runs: replace the node if it stays so"
    try:
        value = json.loads(file.read_text())
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}", remedy) from None
    except ValueError as error:
        raise SetupError(f"{path} is truncated or not JSON: {error}", remedy) from None
    if not isinstance(value, dict):
        raise SetupError(f"{path} has a JSON {type(value).__name__}, expected an object", remedy)
    return value


def _instances(config: dict[str, Any]) -> Iterator[Instance]:
    # The platform writes null for a group without nodes.
    for group in config.get("InstanceGroups") or []:
        for instance in group.get("Instances") or []:
            yield Instance(
                group=group["Name"],
                instance_id=instance.get("InstanceId") or "",
                address=instance.get("CustomerIpAddress") or "",
            )


def _cross_check(parameters: dict[str, Any], group: str, role: Role) -> None:
    """Compare the role with the platform's, if the platform's file names one."""
    if parameters.get("controller_group") == group:
        platforms: Role | None = "controller"
    elif parameters.get("login_group") == group:
        platforms = "login"
    elif any(
        worker.get("instance_group_name") == group
        for worker in parameters.get("worker_groups") or []
    ):
        platforms = "worker"
    else:
        return
    if platforms != role:
        raise SetupError(
            f"group {group} is {role} in the cluster file and {platforms} in {PROVISIONING_PARAMETERS}",
            "a group's role cannot change: give the group another name in the cluster file, and deploy",
        )


def _controllers(config: dict[str, Any], settings: Settings) -> tuple[str, ...]:
    slurm = config.get("SlurmConfig") or {}
    secondary = slurm.get("SecondaryControllerIps") or []
    if isinstance(secondary, str):
        secondary = secondary.replace(",", " ").split()
    named = [address for address in (slurm.get("PrimaryControllerIp"), *secondary) if address]
    if named:
        return tuple(named)
    controllers = {
        name for name, group in settings.instance_groups.items() if group.role == "controller"
    }
    in_groups = [instance for instance in _instances(config) if instance.group in controllers]
    return tuple(instance.address for instance in in_groups if instance.address)
