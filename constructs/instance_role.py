"""The identity of the nodes of one type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from aws_cdk import Acknowledgment, Stack, Validations
from aws_cdk import aws_aps as aps
from aws_cdk import aws_iam as iam
from aws_cdk import aws_secretsmanager as secretsmanager

from constructs import Construct
from constructs.nag_finding import wildcard_finding
from constructs.node_statements import NodeResources, Statement, node_statements


class InstanceRole(Construct):
    """The role of nodes: the secret and the workspace are for Slurm's controllers, ``more`` for EKS's nodes.

    Its statements stand inside the role, so that what refers to the role also waits for them.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        resources: NodeResources,
        database_secret: secretsmanager.ISecret | None,
        workspace: aps.CfnWorkspace | None,
        more: Sequence[Statement] = (),
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        statements = [*node_statements(stack, resources), *more]
        if database_secret:
            read = ["secretsmanager:GetSecretValue"]
            statements.append(Statement("ReadDatabaseSecret", read, [database_secret.secret_arn]))
        if workspace:
            statements.append(Statement("WriteMetrics", ["aps:RemoteWrite"], [workspace.attr_arn]))
        self.role = iam.Role(
            self,
            "Role",
            description=f"{construct_id} of HyperPod cluster {resources.cluster_name}",
            # IfExists: SageMaker documents the key for jobs and Studio but not for clusters. Where it is
            # sent, no other account's cluster can use this role; where it is not, nodes still start.
            assumed_by=iam.ServicePrincipal(
                "sagemaker.amazonaws.com",
                conditions={"StringEqualsIfExists": {"aws:SourceAccount": stack.account}},
            ),
            inline_policies={
                "HyperPodNode": iam.PolicyDocument(
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
        _acknowledge_wildcards(self.role, statements)


def _acknowledge_wildcards(role: iam.Role, statements: Sequence[Statement]) -> None:
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
