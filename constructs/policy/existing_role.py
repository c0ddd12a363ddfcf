"""Existing IAM roles, which the stacks use and never change."""

from aws_cdk import aws_iam as iam

from constructs import Construct


def existing_role(scope: Construct, construct_id: str, *, role: str) -> iam.IRole:
    """Return a role by its name, or by its ARN, which a role with a path needs.

    ``mutable=False`` keeps the library from adding policies to it.
    """
    if role.startswith("arn:"):
        return iam.Role.from_role_arn(scope, construct_id, role, mutable=False)
    return iam.Role.from_role_name(scope, construct_id, role, mutable=False)
