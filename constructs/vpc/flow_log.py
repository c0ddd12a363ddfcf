"""Flow log of a VPC."""

from aws_cdk import Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from constructs import Construct
from constructs.policy.statement_role import WRITE_LOGS
from constructs.storage.log_group import log_group


class FlowLog(Construct):
    """Log of the connections that a VPC accepts or rejects; it is deleted with its stack."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        vpc_id: str,
        key: kms.IKey | None,
        retention_days: int,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        flow_logs = f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}:vpc-flow-log/*"
        group = log_group(self, "LogGroup", key=key, retention_days=retention_days)
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal(
                "vpc-flow-logs.amazonaws.com",
                # The service must not use this role for another account's flow log.
                conditions={
                    "StringEquals": {"aws:SourceAccount": stack.account},
                    "ArnLike": {"aws:SourceArn": flow_logs},
                },
            ),
        )
        policy = iam.Policy(
            self,
            "Policy",
            roles=[role],
            statements=[
                iam.PolicyStatement(
                    actions=WRITE_LOGS,
                    # The attribute's ARN ends with ":*" and means the group's streams.
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
