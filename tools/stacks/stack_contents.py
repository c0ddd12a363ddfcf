"""Contents of a deployed stack, and resources that outlive it."""

import json
from dataclasses import dataclass
from typing import Any

from tools.aws_session import all_items, if_present

NEVER_DEPLOYED = "REVIEW_IN_PROGRESS"
"""Empty stack whose change set was not executed. The state has no end, and the stack can be deleted."""
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
        """Whether it outlives the stack; what a function put into Kubernetes goes with the EKS cluster."""
        # RetainExceptOnCreate retains what has once been deployed.
        retained = self.deletion_policy in ("Retain", "RetainExceptOnCreate")
        return retained and not self.resource_type.startswith("Custom::")

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
    """The stack as it is deployed, policies from its own template; None if there is no such stack."""
    described = if_present(cloudformation.describe_stacks, StackName=name)
    if described is None:
        return None
    stack = described["Stacks"][0]
    if stack["StackStatus"] == NEVER_DEPLOYED:
        return StackContents(name, stack["StackId"], NEVER_DEPLOYED, ())
    template = deployed_template(cloudformation, name) or {"Resources": {}}
    resources = [
        _resource(summary, template["Resources"].get(summary["LogicalResourceId"], {}))
        for summary in all_items(
            cloudformation, "list_stack_resources", "StackResourceSummaries", StackName=name
        )
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
    """The stack's present template; None if there is no such stack."""
    answer = if_present(cloudformation.get_template, StackName=stack_name, TemplateStage="Original")
    if answer is None:
        return None
    body = answer["TemplateBody"]
    # boto3 parses JSON, which the CDK writes; the model behind it says string.
    return json.loads(body) if isinstance(body, str) else body
