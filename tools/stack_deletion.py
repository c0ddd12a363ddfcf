"""Deleting a stack, with its progress on the screen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from tools.stack_contents import StackContents

POLL_SECONDS = 10.0
LIMIT_SECONDS = 3 * 3600.0
"""A large cluster or file system takes well under an hour; CloudFormation itself gives up after 36."""
BATCH = 1000
"""Most objects that one DeleteObjects takes."""


def empty_bucket(s3: Any, bucket: str) -> int:
    """Delete all objects, versions and delete markers; returns their number.

    Raises:
        ValueError: if S3 keeps any of them.
    """
    count = 0
    for page in s3.get_paginator("list_object_versions").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": BATCH}
    ):
        entries = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        objects = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in entries]
        if not objects:
            continue
        answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        if errors := answer.get("Errors"):
            first = errors[0]
            raise ValueError(
                f"{bucket}: {len(errors)} objects cannot be deleted, such as {first.get('Key')}: "
                f"{first.get('Message')}; allow it, or empty the bucket in the console, and try again"
            )
        count += len(objects)
    return count


def delete_stack(cloudformation: Any, stack: StackContents) -> None:
    """Delete a stack and wait until it is gone, printing each resource as it goes.

    Raises:
        ValueError: if something in it cannot be deleted, with CloudFormation's reasons, or takes too long.
    """
    last = next((event["EventId"] for event in _events(cloudformation, stack, until=None)), None)
    cloudformation.delete_stack(StackName=stack.name)
    failures: list[str] = []
    deadline = time.monotonic() + LIMIT_SECONDS
    # The first look may still show the state of before.
    going_on = {"DELETE_IN_PROGRESS", stack.status}
    while True:
        # The state first: the events that are then read explain it. By id: a deleted stack has no name.
        status = cloudformation.describe_stacks(StackName=stack.stack_id)["Stacks"][0]["StackStatus"]
        fresh = list(_events(cloudformation, stack, until=last))
        for event in reversed(fresh):
            failures += _report(event)
        last = fresh[0]["EventId"] if fresh else last
        if status == "DELETE_COMPLETE":
            return
        if status not in going_on:
            reasons = "; ".join(failures) or f"it is {status}; see its events in the CloudFormation console"
            raise ValueError(
                f"stack {stack.name} could not be deleted: {reasons}. Remove what is in the way and run "
                "`make teardown` again"
            )
        if time.monotonic() > deadline:
            raise ValueError(
                f"stack {stack.name} is still being deleted after {LIMIT_SECONDS / 3600:.0f} h; run "
                "`make teardown` again when that has ended"
            )
        going_on = {"DELETE_IN_PROGRESS"}
        time.sleep(POLL_SECONDS)


def _events(cloudformation: Any, stack: StackContents, *, until: str | None) -> Iterator[dict[str, Any]]:
    """Events after that one, the newest first; no more pages are read than that takes."""
    for page in cloudformation.get_paginator("describe_stack_events").paginate(StackName=stack.stack_id):
        for event in page["StackEvents"]:
            if event["EventId"] == until:
                return
            yield event


def _report(event: dict[str, Any]) -> list[str]:
    """Print an event; returns the reason if it is a failure."""
    status, logical_id = event["ResourceStatus"], event["LogicalResourceId"]
    print(f"  {status:18} {logical_id} ({event['ResourceType']})", flush=True)
    if status != "DELETE_FAILED" or event["ResourceType"] == "AWS::CloudFormation::Stack":
        return []
    return [f"{logical_id}: {event.get('ResourceStatusReason', 'no reason given')}"]
