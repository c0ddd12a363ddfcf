"""Makes the policy and the quotas of HyperPod task governance by SageMaker's API.

CloudFormation has types for them in some of the regions only. It calls ``on_event`` once and ``is_complete``
until it says yes; an exception fails the deployment with its text. ``Kind`` of a resource is the API's name
for what it is, ``Request`` the arguments of its creation as JSON, in which numbers stay numbers.
"""

import json
import time
from contextlib import suppress
from typing import Any

import boto3

OPERATIONS = {"ClusterSchedulerConfig": "cluster_scheduler_config", "ComputeQuota": "compute_quota"}
"""Endings of method names, by kind."""
CREATE_ONLY = ("Name", "ClusterArn", "Tags")
"""Arguments that an update does not take."""

Event = dict[str, Any]


def on_event(event: Event, _context: object) -> Event:
    """Ask for the creation, the change or the end; what cannot be changed is made anew.

    Returns the id that the service has given it, and for ``is_complete`` the time and the version wanted.
    """
    thing, request = _Thing(event), json.loads(event["ResourceProperties"]["Request"])
    version = 1
    if event["RequestType"] == "Delete":
        thing.delete()
    elif event["RequestType"] == "Update" and _identity(request) == _identity(
        json.loads(event["OldResourceProperties"]["Request"])
    ):
        version = thing.update(request)
    else:
        thing.create(request)
    return {"PhysicalResourceId": thing.id, "Data": {"Start": time.time(), "Version": version}}


def is_complete(event: Event, _context: object) -> dict[str, bool]:
    """Whether what ``on_event`` asked for has come about.

    Raises:
        RuntimeError: if the service says that it failed, with its reason.
        TimeoutError: after ``TimeoutSeconds``, with what the service says of it.
    """
    thing, gone = _Thing(event), event["RequestType"] == "Delete"
    found = thing.describe()
    if found is None or found["Status"] == "Deleted":
        if gone:
            return {"IsComplete": True}
        raise RuntimeError(f"{thing} was deleted by someone else; deploy again")
    status, reason = found["Status"], found.get("FailureReason", "the service gives no reason")
    if status.endswith("Failed"):
        raise RuntimeError(f"{thing} has status {status}: {reason}")
    version, wanted = found[f"{thing.kind}Version"], int(event["Data"]["Version"])
    if not gone and status in ("Created", "Updated") and version >= wanted:
        return {"IsComplete": True}
    timeout = float(event["ResourceProperties"]["TimeoutSeconds"])
    if time.time() - float(event["Data"]["Start"]) >= timeout:
        raise TimeoutError(f"after {timeout / 60:.0f} minutes {thing} has status {status}")
    return {"IsComplete": False}


class _Thing:
    """The policy or a quota, as the API has it under the resource's id."""

    def __init__(self, event: Event) -> None:
        self.kind: str = event["ResourceProperties"]["Kind"]
        self.id: str = event.get("PhysicalResourceId", "")
        self._client = boto3.client("sagemaker")

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"

    def create(self, request: Event) -> None:
        self.id = self._call("create", **request)[f"{self.kind}Id"]

    def update(self, request: Event) -> int:
        """Returns the version that the change has."""
        found = self._call("describe", **self._named)
        changed = {key: value for key, value in request.items() if key not in CREATE_ONLY}
        target = {"TargetVersion": found[f"{self.kind}Version"]}
        self._tag(found[f"{self.kind}Arn"], {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])})
        return self._call("update", **self._named, **target, **changed)[f"{self.kind}Version"]

    def delete(self) -> None:
        with suppress(self._client.exceptions.ResourceNotFound):  # someone was faster
            self._call("delete", **self._named)

    def describe(self) -> Event | None:
        try:
            return self._call("describe", **self._named)
        except self._client.exceptions.ResourceNotFound:
            return None

    def _tag(self, arn: str, wanted: dict[str, str]) -> None:
        pages = self._client.get_paginator("list_tags").paginate(ResourceArn=arn)
        present = {tag["Key"]: tag["Value"] for page in pages for tag in page["Tags"]}
        # CloudFormation's and AWS's own are not ours to remove.
        too_many = [key for key in present if key not in wanted and not key.startswith("aws:")]
        if too_many:
            self._client.delete_tags(ResourceArn=arn, TagKeys=too_many)
        missing = [{"Key": k, "Value": v} for k, v in wanted.items() if present.get(k) != v]
        if missing:
            self._client.add_tags(ResourceArn=arn, Tags=missing)

    @property
    def _named(self) -> dict[str, str]:
        return {f"{self.kind}Id": self.id}

    def _call(self, verb: str, **arguments: Any) -> Event:
        return getattr(self._client, f"{verb}_{OPERATIONS[self.kind]}")(**arguments)


def _identity(request: Event) -> tuple[str, ...]:
    """Return the fields whose change makes it another object."""
    return (request["Name"], request["ClusterArn"], request.get("ComputeQuotaTarget", {}).get("TeamName", ""))
