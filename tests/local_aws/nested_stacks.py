"""Nested stacks."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlparse

from tests.local_aws.resource_model import Client, Context, Properties, Resource, client


class NestedStack:
    """A stack of its own, whose failure is its parent's."""

    def create(self, context: Context, type_name: str, properties: Properties) -> Resource:
        name = context.generated_name()
        stack_id = _deploy(context, name, properties, "CREATE")
        return Resource(context, type_name, properties, stack_id, {"Name": name})

    def update(self, context: Context, old: Resource, properties: Properties) -> Resource:
        if properties == old.properties:
            return old
        _deploy(context, old.known["Name"], properties, "UPDATE")
        return Resource(context, old.type, properties, old.physical_resource_id, old.known)

    def delete(self, resource: Resource, policy: str) -> None:
        assert policy == "Delete"
        _cloudformation(resource.context).delete_stack(StackName=resource.known["Name"])


def _cloudformation(context: Context) -> Client:
    return client("cloudformation", context.region)


def _deploy(context: Context, name: str, properties: Properties, kind: str) -> str:
    """Deploy the template, and return the id of the stack."""
    bucket, _, key = urlparse(properties["TemplateURL"]).path.strip("/").partition("/")
    body = client("s3", context.region).get_object(Bucket=bucket, Key=key)["Body"].read()
    given = properties.get("Parameters", {})
    cloudformation = _cloudformation(context)
    change_set = cloudformation.create_change_set(
        StackName=name,
        ChangeSetName="change",
        ChangeSetType=kind,
        TemplateBody=body.decode(),
        Parameters=[
            {"ParameterKey": parameter, "ParameterValue": value}
            for parameter, value in given.items()
        ],
    )
    cloudformation.execute_change_set(ChangeSetName=change_set["Id"])
    cloudformation.delete_change_set(ChangeSetName=change_set["Id"])
    stack: dict[str, Any] = cloudformation.describe_stacks(StackName=name)["Stacks"][0]
    if stack["StackStatus"] != f"{kind}_COMPLETE":
        raise ValueError(f"nested stack {name} is {stack['StackStatus']}")
    return str(stack["StackId"])
