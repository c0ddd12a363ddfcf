"""Create the policy and the quotas of HyperPod task governance by SageMaker's API.

CloudFormation has types for them only in some regions. It calls ``on_event`` once, and ``is_complete`` until
it returns true. An exception fails the deployment with its text.

Properties of a resource are ``Kind``, the API's name for the kind of object, and ``Request``, the arguments
of its creation. These are JSON, because CloudFormation would turn numbers into texts.
"""

import json
import time
from contextlib import suppress
from typing import Any

import boto3

OPERATIONS = {"ClusterSchedulerConfig": "cluster_scheduler_config", "ComputeQuota": "compute_quota"}
"""Last parts of the names of boto3's methods, by kind."""
CREATE_ONLY = ("Name", "ClusterArn", "Tags")
"""Arguments that an update does not accept."""
LENDING = "IdleResourceSharing"
"""Field of the policy that boto3 of before February 2026 rejects."""
IN_PLACE = ("Created", "Updated")
"""States of objects that are ready."""

Event = dict[str, Any]


def on_event(event: Event, _context: object) -> Event:
    """Start the creation, the change or the deletion of an object.

    An object that cannot be changed as requested is replaced by a new one.

    Returns:
        the id that the service has assigned, and for ``is_complete`` the time and the version to wait for.
    """
    governed = _Governed(event)
    request = json.loads(event["ResourceProperties"]["Request"])
    version = 1
    if event["RequestType"] == "Delete":
        governed.delete()
    elif event["RequestType"] == "Update" and _is_same(event, request):
        version = governed.update(request)
    else:
        governed.create(request)
    return {"PhysicalResourceId": governed.id, "Data": {"Start": time.time(), "Version": version}}


def is_complete(event: Event, _context: object) -> dict[str, bool]:
    """Return whether the work that ``on_event`` started is complete.

    Raises:
        RuntimeError: if the service reports a failure, or the object was deleted meanwhile.
        TimeoutError: after ``TimeoutSeconds``, with the state that the service reports.
    """
    governed = _Governed(event)
    is_deletion = event["RequestType"] == "Delete"
    found = governed.describe()
    if found is None or found["Status"] == "Deleted":
        if is_deletion:
            return {"IsComplete": True}
        raise RuntimeError(f"{governed} was deleted by someone else; deploy again")
    status = found["Status"]
    if status.endswith("Failed"):
        reason = found.get("FailureReason", "the service gives no reason")
        raise RuntimeError(f"{governed} has status {status}: {reason}")
    has_version = found[f"{governed.kind}Version"] >= int(event["Data"]["Version"])
    if not is_deletion and status in IN_PLACE and has_version:
        return {"IsComplete": True}
    timeout = float(event["ResourceProperties"]["TimeoutSeconds"])
    if time.time() - float(event["Data"]["Start"]) >= timeout:
        raise TimeoutError(f"after {timeout / 60:.0f} minutes {governed} has status {status}")
    return {"IsComplete": False}


class _Governed:
    """Policy or quota with the resource's id, through the API."""

    def __init__(self, event: Event) -> None:
        self.kind: str = event["ResourceProperties"]["Kind"]
        self.id: str = event.get("PhysicalResourceId", "")
        self._client = boto3.client("sagemaker")

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"

    def create(self, request: Event) -> None:
        """Create the object, and set its id."""
        self.id = self._call("create", **self._known(request))[f"{self.kind}Id"]

    def update(self, request: Event) -> int:
        """Change the object, and return its new version."""
        found = self._call("describe", **self._named)
        changed = {key: value for key, value in request.items() if key not in CREATE_ONLY}
        target = {"TargetVersion": found[f"{self.kind}Version"]}
        self._tag(
            found[f"{self.kind}Arn"], {tag["Key"]: tag["Value"] for tag in request.get("Tags", [])}
        )
        return self._call("update", **self._named, **target, **self._known(changed))[
            f"{self.kind}Version"
        ]

    def delete(self) -> None:
        """Delete the object, which may have been deleted already."""
        with suppress(self._client.exceptions.ResourceNotFound):
            self._call("delete", **self._named)

    def describe(self) -> Event | None:
        """Return the object's description; None if it does not exist."""
        try:
            return self._call("describe", **self._named)
        except self._client.exceptions.ResourceNotFound:
            return None

    def _known(self, request: Event) -> Event:
        """Return the request without what Lambda's own boto3 is too old for.

        Raises:
            RuntimeError: if that would change the meaning. Without the field, the service lends idle nodes.
        """
        scheduler = request.get("SchedulerConfig", {})
        shape = self._client.meta.service_model.shape_for("SchedulerConfig")
        if LENDING not in scheduler or LENDING in shape.members:
            return request
        if scheduler[LENDING] != "Enabled":
            raise RuntimeError(
                f"Lambda's boto3 {boto3.__version__} does not know {LENDING}, which lend_unallocated: false"
                " needs; set task_governance.lend_unallocated to true until Lambda has a newer one"
            )
        rest = {name: value for name, value in scheduler.items() if name != LENDING}
        return {**request, "SchedulerConfig": rest}

    def _tag(self, arn: str, wanted: dict[str, str]) -> None:
        """Set the tags that are wanted, and remove others."""
        pages = self._client.get_paginator("list_tags").paginate(ResourceArn=arn)
        present = {tag["Key"]: tag["Value"] for page in pages for tag in page["Tags"]}
        # Tags of CloudFormation and AWS cannot be removed.
        surplus = [key for key in present if key not in wanted and not key.startswith("aws:")]
        if surplus:
            self._client.delete_tags(ResourceArn=arn, TagKeys=surplus)
        missing = [
            {"Key": key, "Value": value}
            for key, value in wanted.items()
            if present.get(key) != value
        ]
        if missing:
            self._client.add_tags(ResourceArn=arn, Tags=missing)

    @property
    def _named(self) -> dict[str, str]:
        return {f"{self.kind}Id": self.id}

    def _call(self, verb: str, **arguments: Any) -> Event:
        return getattr(self._client, f"{verb}_{OPERATIONS[self.kind]}")(**arguments)


def _is_same(event: Event, request: Event) -> bool:
    """Return whether an update keeps the fields that cannot be changed."""
    former = json.loads(event["OldResourceProperties"]["Request"])
    return _identity(request) == _identity(former)


def _identity(request: Event) -> tuple[str, str, str]:
    """Return the fields that cannot be changed: name, cluster, and team of a quota."""
    team = request.get("ComputeQuotaTarget", {}).get("TeamName", "")
    return request["Name"], request["ClusterArn"], team
