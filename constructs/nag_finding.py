"""How cdk-nag names its findings."""

from __future__ import annotations

from aws_cdk import Stack, Token


def wildcard_finding(stack: Stack, resource: str) -> str:
    """The id of the finding that a resource holds a star; tokens have the names of CloudFormation's."""
    names = {
        stack.account: "<AWS::AccountId>",
        stack.region: "<AWS::Region>",
        stack.partition: "<AWS::Partition>",
    }
    for token, name in names.items():
        if Token.is_unresolved(token):
            resource = resource.replace(token, name)
    return f"AwsSolutions-IAM5[Resource::{resource}]"
