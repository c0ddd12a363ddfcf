"""The identity of the nodes of one type."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_aps as aps
from aws_cdk import aws_iam as iam
from aws_cdk import aws_secretsmanager as secretsmanager

from constructs import Construct
from constructs.node_statements import NodeResources, Statement, node_statements
from constructs.statement_role import statement_role


class InstanceRole(Construct):
    """For nodes: the secret and the workspace are for Slurm's controllers, ``more`` for EKS's nodes."""

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
        self.role = statement_role(
            self,
            "Role",
            description=f"{construct_id} of HyperPod cluster {resources.cluster_name}",
            # IfExists: SageMaker documents the key for jobs and Studio but not for clusters. Where it is
            # sent, no other account's cluster can use this role; where it is not, nodes still start.
            assumed_by=iam.ServicePrincipal(
                "sagemaker.amazonaws.com",
                conditions={"StringEqualsIfExists": {"aws:SourceAccount": stack.account}},
            ),
            policy_name="HyperPodNode",
            statements=statements,
        )
