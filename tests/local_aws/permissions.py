"""What policies allow, by moto's reading of them."""

from __future__ import annotations

import json
from typing import Any

from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.iam.models import iam_backends
from moto.s3.models import FakeBucket


def is_permitted(account_id: str, role_arn: str, action: str, resource_arn: str) -> bool:
    """Whether a policy of the role allows the action and none denies it."""
    role = iam_backends[account_id]["aws"].get_role_by_arn(role_arn)
    policies = [*role.policies.values(), *role.managed_policies.values()]
    results = {IAMPolicy(policy).is_action_permitted(action, resource_arn) for policy in policies}
    return PermissionResult.PERMITTED in results and PermissionResult.DENIED not in results


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
