"""Conditions of policies apply in the local AWS."""

from __future__ import annotations

from typing import Any

import pytest

from tests.local_aws.permissions import holds


@pytest.mark.parametrize(
    ("condition", "context", "expected"),
    [
        ({}, {}, True),
        ({"StringLike": {"s3:prefix": ["lifecycle/*", "code/*"]}}, {"s3:prefix": "code/a/"}, True),
        ({"StringLike": {"s3:prefix": ["lifecycle/*", "code/*"]}}, {"s3:prefix": ""}, False),
        ({"StringEquals": {"kms:ViaService": "s3"}}, {}, False),
        ({"ArnEqualsIfExists": {"ec2:Vpc": "arn:one"}}, {}, True),
        ({"ArnEqualsIfExists": {"ec2:Vpc": "arn:one"}}, {"ec2:Vpc": "arn:two"}, False),
        ({"Bool": {"a": "true"}, "StringEquals": {"b": "1"}}, {"a": "true", "b": "2"}, False),
    ],
)
def test_conditions_of_statements_are_looked_at(
    condition: Any, context: dict[str, str], expected: bool
) -> None:
    assert holds(condition, context) is expected
