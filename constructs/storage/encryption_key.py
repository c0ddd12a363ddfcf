"""KMS key that a cluster or endpoint file requests."""

from collections.abc import Mapping, Sequence

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from constructs import Construct

USE_OF_KEY = (
    "kms:Encrypt",
    "kms:Decrypt",
    "kms:ReEncrypt*",
    "kms:GenerateDataKey*",
    "kms:DescribeKey",
)
"""Actions of a service that writes and reads with a key."""


def encryption_key(
    scope: Construct, construct_id: str, *, setting: str, alias: str, removal: RemovalPolicy
) -> kms.IKey | None:
    """Return the key that a file requests.

    Constructs add the statements of their services to the key's policy. This has no effect on a key that is
    given by its ARN; the key's owner must add the same statements.

    Args:
        scope: parent construct.
        construct_id: id within the parent.
        setting: ``aws`` for the services' own keys, ``create`` for a new key, or the ARN of a key.
        alias: alias of a new key.
        removal: removal policy of a new key.

    Returns:
        the key, or None for the services' own keys.
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
        # The longest waiting period of KMS, because everything under the key is lost with it.
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
            sid=sid,
            principals=[principal],
            actions=[*actions],
            resources=["*"],
            conditions=conditions,
        )
    )
