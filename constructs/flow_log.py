"""The record of every connection that a VPC accepts or rejects."""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from constructs import Construct
from constructs.log_group import log_group


class FlowLog(Construct):
    """Flow logs of a VPC, kept for ``retention_days`` and gone with the stack."""

    def __init__(
        self, scope: Construct, construct_id: str, *, vpc_id: str, key: kms.IKey | None, retention_days: int
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        group = log_group(self, "LogGroup", key=key, retention_days=retention_days)
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal(
                "vpc-flow-logs.amazonaws.com",
                # No other account's flow log may pass this role to the service.
                conditions={
                    "StringEquals": {"aws:SourceAccount": stack.account},
                    "ArnLike": {
                        "aws:SourceArn": (
                            f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}:vpc-flow-log/*"
                        )
                    },
                },
            ),
        )
        policy = iam.Policy(
            self,
            "Policy",
            roles=[role],
            statements=[
                iam.PolicyStatement(
                    actions=["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
                    # The group's ARN as CloudFormation returns it ends with ":*": the group's streams.
                    resources=[group.attr_arn],
                )
            ],
        )
        flow_log = ec2.CfnFlowLog(
            self,
            "FlowLog",
            resource_type="VPC",
            resource_id=vpc_id,
            traffic_type="ALL",
            log_destination_type="cloud-watch-logs",
            log_destination=group.attr_arn,
            deliver_logs_permission_arn=role.role_arn,
        )
        flow_log.node.add_dependency(policy)
