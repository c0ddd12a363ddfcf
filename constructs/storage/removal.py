"""What a cluster file says about deletion, in the CDK's words."""

from __future__ import annotations

from aws_cdk import RemovalPolicy

from config.storage import Removal

KEEP = RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
"""Not what a first deployment that fails has made: it holds nothing, and nobody would know that it bills."""


def removal_policy(removal: Removal) -> RemovalPolicy:
    return KEEP if removal == "retain" else RemovalPolicy.DESTROY
