"""States of a cluster's stacks, and reasons of failures, for ``--json``."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from tools.aws_session import if_present

STACK = "AWS::CloudFormation::Stack"
BEGINNINGS = {"CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS"}
"""States of the stack itself at the begin of a change."""
MOST_FAILURES = 20
"""Most failed resources of a stack; the others follow from the first ones."""


def stack_states(cloudformation: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the state of each existing stack, with the failures of its last change."""
    found = []
    for name in names:
        described = if_present(cloudformation.describe_stacks, StackName=name)
        if described is None:
            continue
        status = described["Stacks"][0]["StackStatus"]
        has_failed = "FAILED" in status or "ROLLBACK" in status
        failures = (
            list(islice(_failures(cloudformation, name), MOST_FAILURES)) if has_failed else []
        )
        found.append({"name": name, "status": status, "failures": failures})
    return found


def _failures(cloudformation: Any, name: str) -> Iterator[dict[str, str]]:
    """Yield the failed resources of a stack's last change, the newest first."""
    pages = cloudformation.get_paginator("describe_stack_events").paginate(StackName=name)
    for page in pages:
        for event in page["StackEvents"]:
            status = event["ResourceStatus"]
            if event["ResourceType"] == STACK and event["PhysicalResourceId"] == event["StackId"]:
                if status in BEGINNINGS:
                    return
            elif status.endswith("_FAILED"):
                yield {
                    "logical_id": event["LogicalResourceId"],
                    "type": event["ResourceType"],
                    "reason": event.get("ResourceStatusReason", ""),
                }
