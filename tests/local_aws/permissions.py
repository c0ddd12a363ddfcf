"""Decisions of policies, evaluated by moto."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.iam.models import iam_backends
from moto.s3.models import FakeBucket

OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "ArnEquals": fnmatchcase,
    "ArnLike": fnmatchcase,
    "Bool": str.__eq__,
    "StringEquals": str.__eq__,
    "StringLike": fnmatchcase,
}


def holds(
    condition: Mapping[str, Mapping[str, str | list[str]]], context: Mapping[str, str]
) -> bool:
    """Whether a request with these condition keys fulfils the condition; other operators are a KeyError."""
    for operator, keys in condition.items():
        matches = OPERATORS[operator.removesuffix("IfExists")]
        for key, wanted in keys.items():
            if key not in context:
                if operator.endswith("IfExists"):
                    continue
                return False
            values = [wanted] if isinstance(wanted, str) else wanted
            if not any(matches(context[key], value) for value in values):
                return False
    return True


def is_permitted(
    account_id: str,
    role_arn: str,
    action: str,
    resource_arn: str,
    context: Mapping[str, str] | None = None,
) -> bool:
    """Whether a statement of the role allows the action and none denies it, by their conditions too."""
    role = iam_backends[account_id]["aws"].get_role_by_arn(role_arn)
    results = set()
    for policy in [*role.policies.values(), *role.managed_policies.values()]:
        statements = IAMPolicy(policy)._policy_json["Statement"]
        for statement in statements if isinstance(statements, list) else [statements]:
            condition = statement.pop("Condition", {})
            if holds(condition, context or {}):
                alone = IAMPolicy(json.dumps({"Statement": [statement]}))
                results.add(alone.is_action_permitted(action, resource_arn))
    return PermissionResult.PERMITTED in results and PermissionResult.DENIED not in results


def trusts(
    account_id: str, role_arn: str, service: str, actions: set[str], context: Mapping[str, str]
) -> bool:
    """Whether a role lets the service do all these actions in a request with these condition keys."""
    role = iam_backends[account_id]["aws"].get_role_by_arn(role_arn)
    allowed: set[str] = set()
    for statement in json.loads(role.assume_role_policy_document)["Statement"]:
        principals = statement["Principal"].get("Service", [])
        named = [principals] if isinstance(principals, str) else principals
        if service in named and holds(statement.get("Condition", {}), context):
            assert statement["Effect"] == "Allow", "denials in trust policies are not modelled"
            given = statement["Action"]
            allowed |= {given} if isinstance(given, str) else set(given)
    return actions <= allowed


def get_permission(self: FakeBucket, action: str, resource: str) -> Any:
    """Judge by the bucket policy's unconditional statements.

    moto takes conditions for fulfilled, so "deny what is not TLS" would deny everything; connections to
    this server stand for encrypted ones.
    """
    if self.policy is None:
        return PermissionResult.NEUTRAL
    document = json.loads(self.policy)
    document["Statement"] = [item for item in document["Statement"] if "Condition" not in item]
    return IAMPolicy(json.dumps(document)).is_action_permitted(action, resource)


def install() -> None:
    FakeBucket.get_permission = get_permission  # type: ignore[method-assign]
    # S3 looks at the target's policy when it delivers logs; moto does when logging is turned on.
    FakeBucket._log_permissions_enabled_policy = staticmethod(  # type: ignore[method-assign,assignment]
        lambda **_: True
    )
