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
    """Statement of an IAM policy that allows actions."""

    sid: str
    actions: list[str]
    resources: list[str]
    conditions: Mapping[str, Mapping[str, str | list[str]]] | None = None
    why: str = ""
    """Reason for a wildcard in the resources; required if there is one."""


WRITE_LOGS = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
"""Actions of agents and services that write streams of an existing log group."""


def unscoped(
    sid: str, *actions: str, why: str = "there are no resource-level permissions for these"
) -> Statement:
    """Return a statement for actions that cannot be limited to resources."""
    return Statement(sid, [*actions], ["*"], why=why)


def sagemaker_principal(stack: Stack, service: str = "sagemaker") -> iam.ServicePrincipal:
    """Return a principal of SageMaker for a role that the service assumes only for this account.

    The condition has IfExists because SageMaker documents the key for jobs and Studio, but not for clusters,
    hosting and MLflow. If the service sends the key, it cannot use the role for another account. If it sends
    none, the role still works.
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

    The reason of each resource with a wildcard is passed on to cdk-nag.
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
    findings = {
        wildcard_finding(stack, resource): "; ".join(why) for resource, why in reasons.items()
    }
    acknowledge(role, findings)
    return role
