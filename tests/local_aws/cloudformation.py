"""CloudFormation over moto's backends, as strict as the service where it matters to a deployment.

moto's own engine skips resource types and properties it does not know, ignores DependsOn in change sets,
loses outputs and exports, and reports success after an error. This one keeps moto's stacks, change sets and
intrinsic functions, and replaces how resources are created, changed and deleted: in the order of their
dependencies, by ``resource_types``, with a roll-back, retention and exports that are guarded while in use.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from moto.cloudformation import models
from moto.cloudformation.exceptions import CloudFormationError, ValidationError
from moto.cloudformation.models import ChangeSet, CloudFormationBackend, Event, Stack
from moto.cloudformation.parsing import ResourceMap, clean_json
from moto.cloudformation.responses import CloudFormationResponse
from moto.core.responses import ActionResult, EmptyResult

from tests.local_aws.resource_model import Context, Resource, ResourceType
from tests.local_aws.resource_types import RESOURCE_TYPES


class DeploymentError(Exception):
    """A resource could not be created, changed or deleted."""

    def __init__(self, logical_id: str, type_name: str, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.logical_id, self.type_name = logical_id, type_name


class ChangeSetNotFound(CloudFormationError):
    code = "ChangeSetNotFound"


class Resources(ResourceMap):
    """The resources of one stack; looking one up deploys it, and what it refers to, first."""

    def __init__(self, stack: LocalStack) -> None:
        super().__init__(
            stack.stack_id,
            stack.name,
            stack.parameters,
            stack.tags,
            region_name=stack.region_name,
            account_id=stack.account_id,
            template=stack.template_dict,
            cross_stack_resources=models.cloudformation_backends[stack.account_id][stack.region_name].exports,
        )
        self.stack = stack
        self.deployed: dict[str, Resource] = {}
        self.previous: dict[str, Resource] = {}
        self.deploying = False

    def validate_outputs(self) -> None:
        """moto asks its own models here; unknown attributes are refused when outputs are resolved."""

    def __getitem__(self, key: str) -> Any:
        if key in self.deployed:
            return self.deployed[key]
        if key in self._resource_json_map:
            assert self.deploying, f"{key} is looked up outside of a deployment"
            return self._deploy(key, self._resource_json_map[key])
        return super().__getitem__(key)

    def values(self) -> Any:
        return list(self.deployed.values())

    def update(self, template: dict[str, Any], parameters: dict[str, Any] | None = None) -> None:
        """Deploy ``template`` over what is there (nothing, at first).

        Raises DeploymentError; what was deployed until then stays in ``deployed``.
        """
        declared_before = self._resource_json_map
        self.previous, self.deployed = self.deployed, {}
        self._template, self._resource_json_map = template, template["Resources"]
        self.input_parameters = parameters or {}
        self.deploying = True
        try:
            self.load()
            # The service starts at once whatever no declared dependency holds back. Last first is the order
            # in which a dependency that was left out shows.
            for logical_id in reversed(self._resource_json_map):
                self[logical_id]
        except DeploymentError:
            self.deployed = self.previous | self.deployed
            self._resource_json_map = declared_before | self._resource_json_map
            raise
        finally:
            self.deploying = False
        for logical_id in reversed([name for name in self.previous if name not in self.deployed]):
            self._remove(self.previous[logical_id], declared_before[logical_id])

    def delete(self) -> None:
        """Delete the resources, dependants first, except those with ``DeletionPolicy: Retain``."""
        for logical_id in reversed(list(self.deployed)):
            self._remove(self.deployed[logical_id], self._resource_json_map[logical_id])
            del self.deployed[logical_id]

    def _deploy(self, logical_id: str, declaration: dict[str, Any]) -> Resource | None:
        condition = declaration.get("Condition")
        if condition and not self.lazy_condition_map[condition]:
            return None
        depends_on = declaration.get("DependsOn", [])
        for dependency in [depends_on] if isinstance(depends_on, str) else depends_on:
            self[dependency]
        context = Context(self._region_name, self._account_id, self.stack.name, logical_id)
        old = self.previous.get(logical_id)
        verb = "UPDATE" if old else "CREATE"
        try:
            properties = context.with_secrets(clean_json(declaration.get("Properties", {}), self))
            kind: ResourceType = RESOURCE_TYPES[declaration["Type"]]
            if old is None:
                resource = kind.create(context, declaration["Type"], properties)
            elif old.cf_resource_type == declaration["Type"]:
                resource = kind.update(context, old, properties)
            else:
                raise ValueError(f"was {old.cf_resource_type}: a logical id keeps its type")
        except DeploymentError:
            raise
        except Exception as cause:
            self.stack.report(logical_id, declaration["Type"], f"{verb}_FAILED", reason=str(cause))
            raise DeploymentError(logical_id, declaration["Type"], cause) from cause
        self.deployed[logical_id] = resource
        if resource is not old:
            self.stack.report(
                logical_id, declaration["Type"], f"{verb}_COMPLETE", resource.physical_resource_id
            )
        return resource

    def _remove(self, resource: Resource, declaration: dict[str, Any]) -> None:
        policy = declaration.get("DeletionPolicy", "Delete")
        report = functools.partial(
            self.stack.report,
            resource.logical_resource_id,
            resource.type,
            physical_id=resource.physical_resource_id,
        )
        if policy == "Retain":
            report("DELETE_SKIPPED")
            return
        try:
            RESOURCE_TYPES[resource.type].delete(resource, policy)
        except Exception as cause:
            report("DELETE_FAILED", reason=str(cause))
            raise DeploymentError(resource.logical_resource_id, resource.type, cause) from cause
        report("DELETE_COMPLETE")


class LocalStack(Stack):
    """moto's stack, with ``Resources`` instead of moto's own."""

    def _create_resource_map(self) -> Resources:
        resources = Resources(self)
        if self.template_dict:
            resources.load()
        return resources

    @property
    def stack_parameters(self) -> dict[str, Any]:
        """As given, for UsePreviousValue: moto hands on what an SSM parameter's name was resolved to."""
        declared = self.template_dict.get("Parameters", {})
        return {name: self.parameters.get(name, item.get("Default")) for name, item in declared.items()}

    def report(
        self, logical_id: str, type_name: str, status: str, physical_id: str = "", reason: str | None = None
    ) -> None:
        """Append an event; the CDK CLI prints them."""
        self.events.append(
            Event(self.stack_id, self.name, logical_id, physical_id, type_name, status, reason, None)
        )

    def report_stack(self, status: str, reason: str | None = None) -> None:
        self.status = status
        self._add_stack_event(status, reason)


def _imported_by(backend: CloudFormationBackend, stack: Stack, export: str) -> list[str]:
    """Names of the other stacks whose templates import ``export``."""
    imports = {"Fn::ImportValue": export}
    return [
        other.name
        for other in backend.stacks.values()
        if other is not stack and json.dumps(imports) in json.dumps(other.template_dict)
    ]


def _guard_exports(backend: CloudFormationBackend, stack: Stack, kept: dict[str, str]) -> None:
    for name, export in backend.exports.items():
        if export.exporting_stack_id == stack.stack_id and kept.get(name) != export.value:
            users = _imported_by(backend, stack, name)
            if users:
                raise ValidationError(
                    stack.name, message=f"Export {name} cannot be deleted as it is in use by {users}"
                )


def _publish_exports(backend: CloudFormationBackend, stack: Stack) -> None:
    """Replace the exports of ``stack`` by those of its present outputs."""
    for name in [n for n, e in backend.exports.items() if e.exporting_stack_id == stack.stack_id]:
        del backend.exports[name]
    for export in stack.exports:
        if export.name in backend.exports:
            raise ValidationError(stack.name, message=f"Export {export.name} exists in another stack")
        backend.exports[export.name] = export


_moto_create_change_set = CloudFormationBackend.create_change_set


def create_change_set(self: CloudFormationBackend, *args: Any, **kwargs: Any) -> tuple[str, str]:
    """Refuse resource types that are not modelled, in the service's words for types it does not know."""
    declared = Stack.parse_template(kwargs["template"])["Resources"].values()
    unknown = sorted({resource["Type"] for resource in declared} - RESOURCE_TYPES.keys())
    if unknown:
        raise ValidationError(
            message=f"Template format error: Unrecognized resource types: [{', '.join(unknown)}]"
        )
    return _moto_create_change_set(self, *args, **kwargs)


def find_change_set(request: CloudFormationResponse) -> ChangeSet | None:
    """The change set by its ARN, or by its name and stack; moto mistakes equal names in different stacks."""
    name, stack = request._get_param("ChangeSetName"), request._get_param("StackName")
    for change_set in request.cloudformation_backend.change_sets.values():
        if name == change_set.change_set_id:
            return change_set
        if name == change_set.change_set_name and stack in (change_set.stack_name, change_set.stack_id):
            return change_set
    return None


def describe_change_set(self: CloudFormationResponse) -> ActionResult:
    change_set = find_change_set(self)
    if change_set is None:
        raise ChangeSetNotFound(f"ChangeSet [{self._get_param('ChangeSetName')}] does not exist")
    return ActionResult(change_set)


def delete_change_set(self: CloudFormationResponse) -> ActionResult:
    change_set = find_change_set(self)
    if change_set is not None:
        del self.cloudformation_backend.change_sets[change_set.change_set_id]
    return EmptyResult()


def execute_change_set(self: CloudFormationResponse) -> ActionResult:
    change_set = find_change_set(self)
    assert change_set is not None
    deploy(self.cloudformation_backend, change_set)
    return EmptyResult()


def deploy(backend: CloudFormationBackend, change_set: ChangeSet) -> None:
    """Deploy a change set; a failed creation is rolled back, a failed update is left as it stands."""
    stack = backend.stacks[change_set.stack_id]
    assert isinstance(stack, LocalStack)
    kind = change_set.change_set_type
    stack.report_stack(f"{kind}_IN_PROGRESS", "User Initiated")
    try:
        stack.resource_map.update(change_set.template_dict, change_set.parameters)
        stack.template, stack.parameters = change_set.template, change_set.parameters
        stack.tags = change_set.tags or {}
        stack._parse_template()
        stack.output_map = stack._create_output_map()
        _guard_exports(backend, stack, {export.name: export.value for export in stack.exports})
        _publish_exports(backend, stack)
    except Exception as error:  # whatever it is, the stack has failed, and says so
        if kind == "UPDATE":
            stack.report_stack("UPDATE_ROLLBACK_FAILED", str(error))
        else:
            stack.report_stack("ROLLBACK_IN_PROGRESS", str(error))
            stack.resource_map.delete()
            stack.report_stack("ROLLBACK_COMPLETE", str(error))
    else:
        stack.report_stack(f"{kind}_COMPLETE")
    change_set.execution_status = "EXECUTE_COMPLETE"


def delete_stack(self: CloudFormationBackend, name_or_stack_id: str) -> None:
    """Delete a stack; one that cannot be deleted stays, as DELETE_FAILED."""
    for stack in list(self.stacks.values()):
        if name_or_stack_id in (stack.name, stack.stack_id):
            _guard_exports(self, stack, {})
            assert isinstance(stack, LocalStack)
            stack.report_stack("DELETE_IN_PROGRESS", "User Initiated")
            try:
                stack.resource_map.delete()
            except DeploymentError as error:
                stack.report_stack("DELETE_FAILED", str(error))
                return
            stack.template_dict = {"Resources": {}}
            stack.output_map = stack._create_output_map()
            _publish_exports(self, stack)
            self.deleted_stacks[stack.stack_id] = self.stacks.pop(stack.stack_id)
            stack.report_stack("DELETE_COMPLETE")


def install() -> None:
    """Put this engine in place of moto's."""
    models.Stack = LocalStack  # type: ignore[misc]
    CloudFormationBackend.create_change_set = create_change_set  # type: ignore[method-assign]
    CloudFormationResponse.describe_change_set = describe_change_set  # type: ignore[method-assign]
    CloudFormationResponse.delete_change_set = delete_change_set  # type: ignore[method-assign]
    CloudFormationResponse.execute_change_set = execute_change_set  # type: ignore[method-assign]
    CloudFormationBackend.delete_stack = delete_stack  # type: ignore[method-assign]
