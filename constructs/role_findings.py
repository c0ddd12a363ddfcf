"""The reasons, for cdk-nag, of stars in a role's statements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from aws_cdk import Acknowledgment, Stack, Validations
from aws_cdk import aws_iam as iam

from constructs.nag_finding import wildcard_finding
from constructs.node_statements import Statement


def acknowledge_wildcards(role: iam.Role, statements: Sequence[Statement]) -> None:
    """Give cdk-nag the reason of each resource with a star."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for statement in statements:
        for resource in statement.resources:
            if "*" in resource:
                assert statement.why_wildcard, f"{statement.sid}: no reason for {resource}"
                reasons[resource].append(f"{statement.sid}: {statement.why_wildcard}")
    for resource, why in reasons.items():
        finding = wildcard_finding(Stack.of(role), resource)
        Validations.of(role).acknowledge(Acknowledgment(id=finding, reason="; ".join(why)))
