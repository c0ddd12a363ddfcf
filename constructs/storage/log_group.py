"""A log group that is encrypted with the cluster's key, when there is one."""

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs

from constructs import Construct
from constructs.storage.encryption_key import let_use


def log_group(
    scope: Construct,
    construct_id: str,
    *,
    key: kms.IKey | None,
    retention_days: int = 30,
    log_group_name: str | None = None,
) -> logs.CfnLogGroup:
    """A log group that goes with its stack; CloudFormation names it after the stack unless a name is given.

    ``retention_days`` is one of the periods that CloudWatch Logs offers.
    """
    stack = Stack.of(scope)
    if key is not None:
        # By region and account, not by group: a group made by CloudFormation learns its name after the key.
        groups = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:*"
        let_use(
            key,
            "CloudWatchLogs",
            iam.ServicePrincipal(f"logs.{stack.region}.amazonaws.com"),
            {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}},
        )
    group = logs.CfnLogGroup(
        scope,
        construct_id,
        log_group_name=log_group_name,
        retention_in_days=retention_days,
        kms_key_id=key.key_arn if key else None,
    )
    group.apply_removal_policy(RemovalPolicy.DESTROY)
    return group
