"""The role with which HyperPod's Karpenter adds and removes nodes."""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from constructs import Construct
from constructs.node_statements import Statement
from constructs.statement_role import statement_role


def autoscaling_role(scope: Construct, construct_id: str, *, key: kms.IKey | None) -> iam.Role:
    """SageMaker developer guide, "Create an IAM role for HyperPod autoscaling with Karpenter".

    The cluster's id is not known before the cluster, which names the role: the statement is for the account's
    clusters in the region.
    """
    stack = Stack.of(scope)
    clusters = f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}:cluster/*"
    statements = [
        Statement(
            "ScaleClusters",
            ["sagemaker:BatchAddClusterNodes", "sagemaker:BatchDeleteClusterNodes"],
            [clusters],
            why_wildcard="the cluster's id is the service's, and follows the role",
        )
    ]
    if key:
        via = {"kms:ViaService": f"sagemaker.{stack.region}.amazonaws.com"}
        statements += [
            Statement(
                "GrantVolumesTheKey",
                ["kms:CreateGrant"],
                [key.key_arn],
                {"Bool": {"kms:GrantIsForAWSResource": "true"}, "StringEquals": via},
            ),
            Statement("DescribeKeyOfVolumes", ["kms:DescribeKey"], [key.key_arn], {"StringEquals": via}),
        ]
    return statement_role(
        scope,
        construct_id,
        description="HyperPod's Karpenter",
        assumed_by=iam.ServicePrincipal(
            "hyperpod.sagemaker.amazonaws.com",
            conditions={"StringEqualsIfExists": {"aws:SourceAccount": stack.account}},
        ),
        policy_name="Autoscaling",
        statements=statements,
    )
