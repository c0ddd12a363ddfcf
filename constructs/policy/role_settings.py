"""Account rules for IAM roles: permissions boundary, path and name prefix, on every role of a stack."""

import hashlib

from aws_cdk import CfnResource, Stack

from config.cluster import Iam

MAX_NAME = 64
"""Maximum length of a role's name (IAM user guide, "IAM and AWS STS quotas")."""
DIGEST_CHARACTERS = 8
"""Length of the hash that makes the names of a stack's roles unique."""


def apply_role_settings(stack: Stack, settings: Iam) -> None:
    """Set the properties on all roles of the stack, including those that the CDK creates for its functions.

    A role's name contains a hash of its stack and region, because names must be unique in the account.
    """
    if settings == Iam():
        return
    for child in stack.node.find_all():
        if not isinstance(child, CfnResource) or child.cfn_resource_type != "AWS::IAM::Role":
            continue
        if settings.permissions_boundary:
            child.add_property_override("PermissionsBoundary", settings.permissions_boundary)
        if settings.role_path != "/":
            child.add_property_override("Path", settings.role_path)
        if prefix := settings.role_name_prefix:
            name = f"{prefix}{stack.stack_name}"[: MAX_NAME - DIGEST_CHARACTERS - len("-")]
            place = f"{stack.region} {stack.stack_name} {child.node.path}"
            digest = hashlib.sha256(place.encode()).hexdigest()[:DIGEST_CHARACTERS]
            child.add_property_override("RoleName", f"{name}-{digest}")
