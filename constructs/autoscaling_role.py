"""The role with which HyperPod's Karpenter adds and removes nodes."""

from __future__ import annotations

from aws_cdk import Acknowledgment, Stack, Validations
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from constructs import Construct
from constructs.nag_finding import wildcard_finding


def autoscaling_role(scope: Construct, construct_id: str, *, key: kms.IKey | None) -> iam.Role:
    """SageMaker developer guide, "Create an IAM role for HyperPod autoscaling with Karpenter".

    The cluster's id is not known before the cluster, which names the role: the statement is for the account's
    clusters in the region.
    """
    stack = Stack.of(scope)
    clusters = f"arn:{stack.partition}:sagemaker:{stack.region}:{stack.account}:cluster/*"
    statements = [
        iam.PolicyStatement(
            sid="ScaleClusters",
            actions=["sagemaker:BatchAddClusterNodes", "sagemaker:BatchDeleteClusterNodes"],
            resources=[clusters],
        )
    ]
    if key:
        via = {"kms:ViaService": f"sagemaker.{stack.region}.amazonaws.com"}
        statements += [
            iam.PolicyStatement(
                sid="GrantVolumesTheKey",
                actions=["kms:CreateGrant"],
                resources=[key.key_arn],
                conditions={"Bool": {"kms:GrantIsForAWSResource": "true"}, "StringEquals": via},
            ),
            iam.PolicyStatement(
                sid="DescribeKeyOfVolumes",
                actions=["kms:DescribeKey"],
                resources=[key.key_arn],
                conditions={"StringEquals": via},
            ),
        ]
    role = iam.Role(
        scope,
        construct_id,
        description="HyperPod's Karpenter",
        assumed_by=iam.ServicePrincipal(
            "hyperpod.sagemaker.amazonaws.com",
            conditions={"StringEqualsIfExists": {"aws:SourceAccount": stack.account}},
        ),
        inline_policies={"Autoscaling": iam.PolicyDocument(minimize=False, statements=statements)},
    )
    finding = wildcard_finding(stack, clusters)
    reason = "the cluster's id is the service's, and follows the role"
    Validations.of(role).acknowledge(Acknowledgment(id=finding, reason=reason))
    return role
