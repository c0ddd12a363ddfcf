"""Deleting a stack, with its progress on the screen."""

from __future__ import annotations

import time
from typing import Any

from tools.stack_contents import StackContents

POLL_SECONDS = 10.0
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
        ValueError: if something in it cannot be deleted, with CloudFormation's reasons.
    """
    seen = {event["EventId"] for event in _events(cloudformation, stack)}
    cloudformation.delete_stack(StackName=stack.name)
    failures: list[str] = []
    while True:
        fresh = [event for event in _events(cloudformation, stack) if event["EventId"] not in seen]
        for event in reversed(fresh):  # the newest come first
            seen.add(event["EventId"])
            failures += _report(event)
        # By id: a deleted stack has no name any more.
        status = cloudformation.describe_stacks(StackName=stack.stack_id)["Stacks"][0]["StackStatus"]
        if status == "DELETE_COMPLETE":
            return
        if status == "DELETE_FAILED":
            reasons = "; ".join(failures) or "see its events in the CloudFormation console"
            raise ValueError(
                f"stack {stack.name} could not be deleted: {reasons}. Remove what is in the way and run "
                "`make teardown` again"
            )
        time.sleep(POLL_SECONDS)


def _events(cloudformation: Any, stack: StackContents) -> list[dict[str, Any]]:
    pages = cloudformation.get_paginator("describe_stack_events").paginate(StackName=stack.stack_id)
    return [event for page in pages for event in page["StackEvents"]]


def _report(event: dict[str, Any]) -> list[str]:
    """Print an event; returns the reason if it is a failure."""
    status, logical_id = event["ResourceStatus"], event["LogicalResourceId"]
    print(f"  {status:18} {logical_id} ({event['ResourceType']})", flush=True)
    if status != "DELETE_FAILED" or event["ResourceType"] == "AWS::CloudFormation::Stack":
        return []
    return [f"{logical_id}: {event.get('ResourceStatusReason', 'no reason given')}"]
