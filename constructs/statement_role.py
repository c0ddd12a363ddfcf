"""A role that may do what its statements say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from aws_cdk import Acknowledgment, Stack, Validations
from aws_cdk import aws_iam as iam

from constructs import Construct
from constructs.nag_finding import wildcard_finding
from constructs.node_statements import Statement


def statement_role(
    scope: Construct,
    construct_id: str,
    *,
    description: str,
    assumed_by: iam.IPrincipal,
    policy_name: str,
    statements: Sequence[Statement],
) -> iam.Role:
    """The statements stand inside the role, so that what refers to the role also waits for them.

    cdk-nag is given the reason of each resource with a star.
    """
    role = iam.Role(
        scope,
        construct_id,
        description=description,
        assumed_by=assumed_by,
        inline_policies={
            policy_name: iam.PolicyDocument(
                minimize=False,
                statements=[
                    iam.PolicyStatement(
                        sid=statement.sid,
                        actions=statement.actions,
                        resources=statement.resources,
                        conditions=statement.conditions,
                    )
                    for statement in statements
                ],
            )
        },
    )
    reasons: dict[str, list[str]] = defaultdict(list)
    for statement in statements:
        for resource in statement.resources:
            if "*" in resource:
                assert statement.why_wildcard, f"{statement.sid}: no reason for {resource}"
                reasons[resource].append(f"{statement.sid}: {statement.why_wildcard}")
    for resource, why in reasons.items():
        finding = wildcard_finding(Stack.of(role), resource)
        Validations.of(role).acknowledge(Acknowledgment(id=finding, reason="; ".join(why)))
    return role
