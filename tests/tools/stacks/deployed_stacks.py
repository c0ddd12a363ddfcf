"""CloudFormation with stacks that can be read and deleted."""

from __future__ import annotations

import json
from typing import Any

from tests.tools.accounts import STARTED
from tests.tools.answering_aws import ACCOUNT, AnsweringAws, Parameters, Refusal

Template = dict[str, Any]
LEFT = {"Retain", "RetainExceptOnCreate"}


class DeployedStacks:
    """Stacks by name. A deletion takes two queries: one while it is in progress, and one after its end."""

    def __init__(self, aws: AnsweringAws, templates: dict[str, Template]) -> None:
        self.templates = templates
        self.status = dict.fromkeys(templates, "CREATE_COMPLETE")
        self.deleted: list[str] = []
        self.stuck: dict[str, str] = {}
        """Logical ids that cannot be deleted, and why."""
        self.after_deletion = "DELETE_COMPLETE"
        """The state in which a deletion ends."""
        self.event_pages: list[str] = []
        """The stack of each page of events that was read."""
        self._events: dict[str, list[dict[str, Any]]] = {name: [] for name in templates}
        for name in templates:
            self._event(name, name, "AWS::CloudFormation::Stack", "CREATE_COMPLETE")
        for operation, answer in {
            "DescribeStacks": self._describe,
            "GetTemplate": self._template,
            "ListStackResources": self._resources,
            "DescribeStackEvents": self._list_events,
            "DeleteStack": self._delete,
        }.items():
            aws.answer("cloudformation", operation, answer)

    @staticmethod
    def physical_id(logical_id: str) -> str:
        return f"{logical_id.lower()}-0123"

    def _name(self, parameters: Parameters) -> str:
        asked = str(parameters["StackName"])
        name = asked.split("/")[1] if asked.startswith("arn:") else asked
        gone = self.status.get(name) in (None, "DELETE_COMPLETE")
        if gone and not (asked.startswith("arn:") and name in self.status):
            raise Refusal("ValidationError", f"Stack with id {asked} does not exist")
        return name

    def _describe(self, parameters: Parameters) -> dict[str, Any]:
        name = self._name(parameters)
        status = self.status[name]
        if status == "DELETE_IN_PROGRESS":
            stuck = any(
                logical_id in self.stuck for logical_id in self.templates[name]["Resources"]
            )
            self.status[name] = "DELETE_FAILED" if stuck else self.after_deletion
        stack_id = f"arn:aws:cloudformation:us-west-2:{ACCOUNT}:stack/{name}/0a1b"
        stack = {
            "StackName": name,
            "StackId": stack_id,
            "CreationTime": STARTED,
            "StackStatus": status,
        }
        return {"Stacks": [stack]}

    def _template(self, parameters: Parameters) -> dict[str, Any]:
        return {"TemplateBody": json.dumps(self.templates[self._name(parameters)])}

    def _resources(self, parameters: Parameters) -> dict[str, Any]:
        resources = self.templates[self._name(parameters)]["Resources"]
        return {
            "StackResourceSummaries": [
                {
                    "LogicalResourceId": logical_id,
                    "PhysicalResourceId": self.physical_id(logical_id),
                    "ResourceType": resource["Type"],
                    "ResourceStatus": "CREATE_COMPLETE",
                    "LastUpdatedTimestamp": STARTED,
                }
                for logical_id, resource in resources.items()
            ]
        }

    def _list_events(self, parameters: Parameters) -> dict[str, Any]:
        """Two events a page, the newest first."""
        name = self._name(parameters)
        start = int(parameters.get("NextToken", 0))
        events = self._events[name][::-1]
        self.event_pages.append(name)
        more = {"NextToken": str(start + 2)} if start + 2 < len(events) else {}
        return {"StackEvents": events[start : start + 2]} | more

    def add_old_events(self, name: str, number: int) -> None:
        for _ in range(number):
            self._event(name, name, "AWS::CloudFormation::Stack", "UPDATE_COMPLETE")

    def _delete(self, parameters: Parameters) -> dict[str, Any]:
        name = self._name(parameters)
        self.status[name] = "DELETE_IN_PROGRESS"
        self.deleted.append(name)
        for logical_id, resource in self.templates[name]["Resources"].items():
            if logical_id in self.stuck:
                self._event(
                    name, logical_id, resource["Type"], "DELETE_FAILED", self.stuck[logical_id]
                )
            else:
                skipped = resource.get("DeletionPolicy") in LEFT
                self._event(
                    name,
                    logical_id,
                    resource["Type"],
                    f"DELETE_{'SKIPPED' if skipped else 'COMPLETE'}",
                )
        return {}

    def _event(
        self, name: str, logical_id: str, resource_type: str, status: str, reason: str = ""
    ) -> None:
        self._events[name].append(
            {
                "StackId": f"arn:aws:cloudformation:us-west-2:{ACCOUNT}:stack/{name}/0a1b",
                "EventId": f"{name}-{len(self._events[name])}",
                "StackName": name,
                "LogicalResourceId": logical_id,
                "ResourceType": resource_type,
                "ResourceStatus": status,
                "ResourceStatusReason": reason,
                "Timestamp": STARTED,
            }
        )
