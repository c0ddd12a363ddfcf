"""Log groups."""

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
    """Create a log group that is deleted with its stack.

    Args:
        scope: parent construct.
        construct_id: id within the parent.
        key: key that encrypts the group, if the cluster has one.
        retention_days: retention period, one of those that CloudWatch Logs offers.
        log_group_name: name of the group; by default, CloudFormation names it after the stack.
    """
    stack = Stack.of(scope)
    if key is not None:
        # For all groups of region and account, because CloudFormation names a group after the key exists.
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
