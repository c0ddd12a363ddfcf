"""Resources found in a template of the network or storage stack."""

from __future__ import annotations

import re
from typing import Any

from tests.stacks.base_templates import Template


def subnets(template: Template, kind: str) -> dict[str, dict[str, Any]]:
    """Subnets by logical id; the kind is the second part of the name they are tagged with."""
    return {
        name: subnet["Properties"]
        for name, subnet in template.resources("AWS::EC2::Subnet").items()
        if any(f"-{kind}-" in tag["Value"] for tag in subnet["Properties"]["Tags"])
    }


def cluster_group(template: Template) -> str:
    """Logical id of the nodes' security group."""
    (name,) = (
        name
        for name, group in template.resources("AWS::EC2::SecurityGroup").items()
        if group["Properties"]["GroupDescription"].startswith("Nodes and file systems")
    )
    return name


def endpoints(template: Template, endpoint_type: str) -> list[dict[str, Any]]:
    """Properties of the ``Interface`` or ``Gateway`` endpoints."""
    return [
        endpoint
        for endpoint in template.properties("AWS::EC2::VPCEndpoint")
        if endpoint["VpcEndpointType"] == endpoint_type
    ]


def bucket(template: Template, prefix: str) -> tuple[str, dict[str, Any]]:
    """The bucket whose logical id starts so, which is its construct id."""
    ((name, found),) = (
        (name, resource)
        for name, resource in template.resources("AWS::S3::Bucket").items()
        if re.match(rf"{prefix}[0-9A-F]{{8}}$", name)
    )
    return name, found
