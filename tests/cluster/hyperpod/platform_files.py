"""Files that HyperPod writes below /opt/ml/config on every node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.cluster.machine import Machine


@dataclass(frozen=True)
class Member:
    """A machine in its place in the cluster."""

    machine: Machine
    group: str


def resource_config(
    cluster: str,
    groups: dict[str, dict[str, Any]],
    members: Sequence[Member],
    controller_address: str,
) -> str:
    """resource_config.json; ``groups`` are the settings' instance groups. A group without nodes has null."""
    listed = []
    for name, group in groups.items():
        instances = [
            {
                "InstanceName": f"{name}-{index}",
                "InstanceId": member.machine.instance_id,
                # The service's own side of the node; the cluster's network knows the other address alone.
                "AgentIpAddress": f"169.254.0.{member.machine.number}",
                "CustomerIpAddress": member.machine.address,
                "InstanceLabel": f"{name}-{index}",
            }
            for index, member in enumerate((m for m in members if m.group == name), start=1)
        ]
        listed.append(
            {"Name": name, "InstanceType": group["instance_type"], "Instances": instances or None}
        )
    config = {
        "ClusterType": "Slurm",
        "ClusterConfig": {
            "ClusterArn": "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl",
            "ClusterName": cluster,
        },
        "SlurmConfig": {"PrimaryControllerIp": controller_address, "SecondaryControllerIps": None},
        "InstanceGroups": listed,
    }
    return json.dumps(config, indent=2)


def provisioning_parameters(groups: dict[str, dict[str, Any]]) -> str:
    def of_role(role: str) -> list[str]:
        return [name for name, group in groups.items() if group["role"] == role]

    parameters: dict[str, Any] = {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": of_role("controller")[0],
        "worker_groups": [
            {"instance_group_name": name, "partition_name": groups[name]["partition"]}
            for name in of_role("worker")
        ],
    }
    if of_role("login"):
        parameters["login_group"] = of_role("login")[0]
    return json.dumps(parameters, indent=2)
