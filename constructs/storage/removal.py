"""What a cluster file says about deletion, in the CDK's words."""

from __future__ import annotations

from aws_cdk import CfnDeletionPolicy, CfnResource, RemovalPolicy

from config.storage import Removal

KEEP = RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
"""Not what a first deployment that fails has made: it holds nothing, and nobody would know that it bills."""


def removal_policy(removal: Removal) -> RemovalPolicy:
    return KEEP if removal == "retain" else RemovalPolicy.DESTROY


def apply_to_file_system(file_system: CfnResource, removal: Removal) -> None:
    """Deletion as the file says; replacement never deletes.

    A changed subnet or deployment type makes a new, empty file system. The old one stays, with its data,
    whatever was written about the end of the stack.
    """
    file_system.cfn_options.deletion_policy = (
        CfnDeletionPolicy.RETAIN_EXCEPT_ON_CREATE if removal == "retain" else CfnDeletionPolicy.DELETE
    )
    file_system.cfn_options.update_replace_policy = CfnDeletionPolicy.RETAIN
