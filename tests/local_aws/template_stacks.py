"""Stacks by their templates, without the command line."""

from __future__ import annotations

import json
from typing import Any

from tests.local_aws.deployment import LocalAws

REGION = "eu-west-1"  # apart from the regions of the shipped cluster files

Resources = dict[str, dict[str, Any]]


class Stacks:
    def __init__(self, aws: LocalAws) -> None:
        self.cloudformation = aws.client("cloudformation", REGION)

    def deploy(
        self, name: str, resources: Resources, *, kind: str = "CREATE", outputs: Any = None
    ) -> str:
        """Returns the status."""
        template = {"Resources": resources, "Outputs": outputs or {}}
        change_set = self.cloudformation.create_change_set(
            StackName=name,
            ChangeSetName="change",
            ChangeSetType=kind,
            TemplateBody=json.dumps(template),
        )
        self.cloudformation.execute_change_set(ChangeSetName=change_set["Id"])
        self.cloudformation.delete_change_set(ChangeSetName=change_set["Id"])
        return self.status(name)

    def delete(self, name: str) -> str:
        stack_id = self.cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackId"]
        self.cloudformation.delete_stack(StackName=name)
        return self.status(stack_id)

    def status(self, name: str) -> str:
        return str(self.cloudformation.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"])

    def reasons(self, name: str) -> str:
        events = self.cloudformation.describe_stack_events(StackName=name)["StackEvents"]
        return "\n".join(event.get("ResourceStatusReason", "") for event in events)
