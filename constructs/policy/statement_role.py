"""IAM role with the permissions of its statements."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import Stack
from aws_cdk import aws_iam as iam

from constructs import Construct
from constructs.policy.findings import acknowledge, wildcard_finding


@dataclass(frozen=True)
class Statement:
    sid: str
    actions: list[str]
    resources: list[str]
    conditions: Mapping[str, Mapping[str, str | list[str]]] | None = None
    why: str = ""
    """Reason why a resource with a star cannot be named."""


WRITE_LOGS = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
"""Actions of agents and services that write streams of a log group that exists."""


def unscoped(
    sid: str, *actions: str, why: str = "there are no resource-level permissions for these"
) -> Statement:
    """Return a statement for actions that cannot be limited to resources."""
    return Statement(sid, [*actions], ["*"], why=why)


def sagemaker_principal(stack: Stack, service: str = "sagemaker") -> iam.ServicePrincipal:
    """Return a principal of SageMaker's, for a role that it may assume for this account alone.

    IfExists: SageMaker documents the key for jobs and Studio, but not for clusters, hosting and MLflow. Where
    it is sent, no other account can use the role; where it is not, the service still works.
    """
    return iam.ServicePrincipal(
        f"{service}.amazonaws.com",
        conditions={"StringEqualsIfExists": {"aws:SourceAccount": stack.account}},
    )


def statement_role(
    scope: Construct,
    construct_id: str,
    *,
    description: str,
    assumed_by: iam.IPrincipal,
    policy_name: str,
    statements: Sequence[Statement],
) -> iam.Role:
    """Create a role with inline statements, so that resources that refer to the role also wait for them.

    cdk-nag gets the reason for each resource with a star.
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
                assert statement.why, f"{statement.sid}: no reason for {resource}"
                reasons[resource].append(f"{statement.sid}: {statement.why}")
    stack = Stack.of(role)
    findings = {wildcard_finding(stack, resource): "; ".join(why) for resource, why in reasons.items()}
    acknowledge(role, findings)
    return role
