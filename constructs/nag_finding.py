"""How cdk-nag names its findings."""

from __future__ import annotations

import re
from typing import Any

from aws_cdk import Stack, Token


def wildcard_finding(stack: Stack, resource: str) -> str:
    """The id of the finding that a resource holds a star; what a deployment fills in stands in <>."""
    text = _written(stack.resolve(resource)) if Token.is_unresolved(resource) else resource
    # So are variables of policies written.
    text = re.sub(r"\$\{(.+?)\}", r"<\1>", text)
    return f"AwsSolutions-IAM5[Resource::{text}]"


def assets_finding(stack: Stack) -> str:
    """Return the id of the finding that all assets are read, from the bucket that `cdk bootstrap` created."""
    bucket = f"cdk-{stack.synthesizer.bootstrap_qualifier}-assets-{stack.account}-{stack.region}"
    return wildcard_finding(stack, f"arn:{stack.partition}:s3:::{bucket}/*")


def _written(value: Any) -> str:
    match value:
        case {"Fn::Join": ["", [*parts]]}:
            return "".join(map(_written, parts))
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
    return str(value)
