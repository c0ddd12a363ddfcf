"""KMS key of a cluster file."""

from collections.abc import Mapping, Sequence

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from constructs import Construct

USE_OF_KEY = ("kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey")
"""Actions of a service that writes and reads with a key."""


def encryption_key(
    scope: Construct, construct_id: str, *, setting: str, alias: str, removal: RemovalPolicy
) -> kms.IKey | None:
    """Return None for the services' own keys (``aws``), a new key (``create``), or the key with this ARN.

    Constructs add the statements of their services to the key's policy. That has no effect on a key given by
    its ARN, whose owner grants the same.
    """
    if setting == "aws":
        return None
    if setting != "create":
        return kms.Key.from_key_arn(scope, construct_id, setting)
    return kms.Key(
        scope,
        construct_id,
        alias=alias,
        enable_key_rotation=True,
        # The longest that KMS offers: with the key, everything under it is lost.
        pending_window=Duration.days(30),
        removal_policy=removal,
    )


def let_use(
    key: kms.IKey,
    sid: str,
    principal: iam.IPrincipal,
    conditions: Mapping[str, Mapping[str, str]] | None = None,
    actions: Sequence[str] = USE_OF_KEY,
) -> None:
    """Add a statement to the key's policy, in which ``*`` means this key."""
    key.add_to_resource_policy(
        iam.PolicyStatement(
            sid=sid, principals=[principal], actions=[*actions], resources=["*"], conditions=conditions
        )
    )
