"""Findings of checkov that do not apply, each with its reason."""

from __future__ import annotations

from aws_cdk import CfnResource


def skip_check(resource: CfnResource, check_id: str, reason: str) -> None:
    """Write a skip where checkov looks for it: the metadata of the resource in the template."""
    skipped = (resource.get_metadata("checkov") or {"skip": []})["skip"]
    resource.add_metadata("checkov", {"skip": [*skipped, {"id": check_id, "comment": reason}]})
