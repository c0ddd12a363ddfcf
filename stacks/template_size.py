"""Whether CloudFormation takes the templates, which aws-cdk-lib only warns of."""

from __future__ import annotations

from pathlib import Path

MAX_TEMPLATE_BYTES = 1_000_000
"""Of a template in S3 (CloudFormation user guide, "Understand CloudFormation quotas")."""


def oversized(folder: Path) -> list[str]:
    """A line for each template of a cloud assembly that is too large, with what makes templates large."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.template.json"))}
    return [
        f"{name.removesuffix('.template.json')}: the template has {size:,} bytes, CloudFormation takes"
        f" {MAX_TEMPLATE_BYTES:,}; tags stand at every resource, labels and taints at every group: set fewer"
        " or shorter ones, or fewer groups, teams or access entries"
        for name, size in sizes.items()
        if size > MAX_TEMPLATE_BYTES
    ]
