"""Roles of nodes, and of the Karpenter that adds and removes them."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_aps as aps
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_secretsmanager as secretsmanager

from constructs import Construct
from constructs.nodes.node_statements import NodeResources, Statement, node_statements, volume_key_statements
from constructs.policy.statement_role import sagemaker_principal, statement_role


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
            assumed_by=sagemaker_principal(stack),
            policy_name="HyperPodNode",
            statements=statements,
        )


def autoscaling_role(scope: Construct, construct_id: str, *, key: kms.IKey | None) -> iam.Role:
    """Create the role with which HyperPod's Karpenter adds and removes nodes.

    After "Create an IAM role for HyperPod autoscaling with Karpenter" in SageMaker's developer guide. The
    cluster's id is not known before the cluster, which names the role: the statement is for the account's
    clusters in the region.
    """
    stack = Stack.of(scope)
    statements = [
        Statement(
            "ScaleClusters",
            ["sagemaker:BatchAddClusterNodes", "sagemaker:BatchDeleteClusterNodes"],
            [f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}:cluster/*"],
            why_wildcard="the cluster's id is the service's, and follows the role",
        )
    ]
    if key:
        statements += volume_key_statements(stack, key.key_arn)
    return statement_role(
        scope,
        construct_id,
        description="HyperPod's Karpenter",
        assumed_by=sagemaker_principal(stack, "hyperpod.sagemaker"),
        policy_name="Autoscaling",
        statements=statements,
    )
