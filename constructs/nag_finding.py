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


def _written(value: Any) -> str:
    match value:
        case {"Fn::Join": ["", [*parts]]}:
            return "".join(map(_written, parts))
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
    return str(value)
