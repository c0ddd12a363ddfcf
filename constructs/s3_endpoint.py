"""The gateway endpoint through which nodes reach S3 without a NAT gateway."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam

from constructs import Construct


def s3_gateway_endpoint(
    scope: Construct, construct_id: str, *, vpc_id: str, route_table_ids: Sequence[str], closed: bool
) -> ec2.CfnVPCEndpoint:
    """A gateway endpoint on the route tables given; repeated ones are taken once.

    Its policy is the service's default, as those of the interface endpoints are, unless the network is
    ``closed``. Where there is a way to the internet, a policy here keeps nothing in; and in a VPC that others
    use too, it would bind them.
    """
    return ec2.CfnVPCEndpoint(
        scope,
        construct_id,
        vpc_id=vpc_id,
        service_name=f"com.amazonaws.{Stack.of(scope).region}.s3",
        vpc_endpoint_type="Gateway",
        route_table_ids=list(dict.fromkeys(route_table_ids)),
        policy_document=_no_foreign_writes(scope) if closed else None,
    )


def _no_foreign_writes(scope: Construct) -> iam.PolicyDocument:
    """What passes out of a closed network.

    This account's identities may do what their own policies allow. Everyone else may only read: ECR's layers,
    package repositories and SageMaker's own files lie in buckets of other accounts, are fetched with other
    credentials or none, and their names differ by region. What does not pass is a write with foreign
    credentials, the simplest way to carry data out; uploads that an agent would make with its service's
    credentials are refused with it. HyperPod documents none: its agents log to this account's CloudWatch.
    """
    return iam.PolicyDocument(
        statements=[
            iam.PolicyStatement(
                sid="OwnIdentities",
                principals=[iam.AnyPrincipal()],
                actions=["s3:*"],
                resources=["*"],
                conditions={"StringEquals": {"aws:PrincipalAccount": Stack.of(scope).account}},
            ),
            iam.PolicyStatement(
                sid="ReadForeign",
                principals=[iam.AnyPrincipal()],
                actions=["s3:GetBucketLocation", "s3:GetObject", "s3:GetObjectVersion", "s3:ListBucket"],
                resources=["*"],
            ),
        ]
    )
