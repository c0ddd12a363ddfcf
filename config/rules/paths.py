"""Places in a cluster file as errors name them, and values that stand in two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from config.cluster import InstanceGroup
from config.reading.violation import Violation


def group_path(group: InstanceGroup, field: str) -> str:
    """As ``instance_groups[workers].ebs_gib``: by name, since a person does not count groups."""
    return f"instance_groups[{group.name}].{field}"


def group_violation(group: InstanceGroup, field: str, allowed: str, fix: str) -> Violation:
    """Return a violation by the value that one field of a group has."""
    return Violation(group_path(group, field), getattr(group, field), allowed, fix)


def repetitions(
    path: str, values: Sequence[str], allowed: str, fix: str, *, key: str = ""
) -> Iterator[Violation]:
    """Yield a violation for each value of a list at ``path`` that an earlier item has too.

    ``key`` is the value's field in the items, with its dot; empty if the items are the values.
    """
    for index, value in enumerate(values):
        if value in values[:index]:
            yield Violation(f"{path}[{index}]{key}", value, allowed, fix)
