"""How errors name a place in a cluster file."""

from __future__ import annotations

from config.cluster import InstanceGroup


def group_path(group: InstanceGroup, field: str) -> str:
    """As ``instance_groups[workers].ebs_gib``: by name, since a person does not count groups."""
    return f"instance_groups[{group.name}].{field}"
