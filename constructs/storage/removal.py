"""Removal policies of the CDK for the values of a cluster file."""

from __future__ import annotations

from aws_cdk import RemovalPolicy

from config.storage import Removal

KEEP = RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
"""Resources of a failed first deployment are not kept, because they are empty and would bill unnoticed."""


def removal_policy(removal: Removal) -> RemovalPolicy:
    return KEEP if removal == "retain" else RemovalPolicy.DESTROY
