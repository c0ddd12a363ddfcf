"""Contents of a deployed stack, and resources that outlive it."""

import json
from dataclasses import dataclass
from typing import Any

from tools.aws_session import all_items, if_present

NEVER_DEPLOYED = "REVIEW_IN_PROGRESS"
"""State of an empty stack with a change set that was not executed. It has no end, and the stack can be
deleted."""
SNAPSHOT_BY_DEFAULT = {"AWS::RDS::DBInstance", "AWS::RDS::DBCluster"}
"""Types with a snapshot by default, without a DeletionPolicy (DeletionPolicy attribute reference)."""


@dataclass(frozen=True)
class StackResource:
    logical_id: str
    resource_type: str
    physical_id: str
    """Empty for a resource that was never created."""
    deletion_policy: str
    properties: dict[str, Any]
    """Properties in the template, with unresolved references."""

    @property
    def is_kept(self) -> bool:
        """Return whether the resource outlives its stack.

        A custom resource does not: objects that a function created in Kubernetes end with the EKS cluster.
        """
        # RetainExceptOnCreate deletes a resource only if its creation fails.
        is_retained = self.deletion_policy in ("Retain", "RetainExceptOnCreate")
        return is_retained and not self.resource_type.startswith("Custom::")

    @property
    def leaves_snapshot(self) -> bool:
        return self.deletion_policy == "Snapshot"


@dataclass(frozen=True)
class StackContents:
    name: str
    stack_id: str
    status: str
    resources: tuple[StackResource, ...]

    def of_type(self, resource_type: str) -> list[StackResource]:
        return [resource for resource in self.resources if resource.resource_type == resource_type]


def read_stack(cloudformation: Any, name: str) -> StackContents | None:
    """Return the deployed stack, with the policies of its own template; None if it does not exist."""
    described = if_present(cloudformation.describe_stacks, StackName=name)
    if described is None:
        return None
    stack = described["Stacks"][0]
    if stack["StackStatus"] == NEVER_DEPLOYED:
        return StackContents(name, stack["StackId"], NEVER_DEPLOYED, ())
    template = deployed_template(cloudformation, name) or {"Resources": {}}
    summaries = all_items(
        cloudformation, "list_stack_resources", "StackResourceSummaries", StackName=name
    )
    resources = [
        _resource(summary, template["Resources"].get(summary["LogicalResourceId"], {}))
        for summary in summaries
        if summary["ResourceStatus"] != "DELETE_COMPLETE"
    ]
    return StackContents(name, stack["StackId"], stack["StackStatus"], tuple(resources))


def _resource(summary: dict[str, Any], definition: dict[str, Any]) -> StackResource:
    resource_type = summary["ResourceType"]
    default = "Snapshot" if resource_type in SNAPSHOT_BY_DEFAULT else "Delete"
    return StackResource(
        logical_id=summary["LogicalResourceId"],
        resource_type=resource_type,
        physical_id=summary.get("PhysicalResourceId", ""),
        deletion_policy=definition.get("DeletionPolicy", default),
        properties=definition.get("Properties", {}),
    )


def deployed_template(cloudformation: Any, stack_name: str) -> dict[str, Any] | None:
    """Return the stack's current template; None if the stack does not exist."""
    response = if_present(
        cloudformation.get_template, StackName=stack_name, TemplateStage="Original"
    )
    if response is None:
        return None
    body = response["TemplateBody"]
    # boto3 parses a template in JSON, as the CDK writes it, although its model declares a string.
    return json.loads(body) if isinstance(body, str) else body
