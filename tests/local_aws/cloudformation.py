"""CloudFormation over moto's backends, as strict as the service where it matters to a deployment.

moto's own engine skips resource types and properties it does not know, ignores DependsOn in change sets,
loses outputs and exports, and reports success after an error. This one keeps moto's stacks, change sets and
intrinsic functions; ``stack_resources`` deploys what is declared, types that have no row in
``resource_types`` are refused, failures are rolled back, exports are guarded while in use.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from moto.cloudformation import models
from moto.cloudformation.exceptions import CloudFormationError, ValidationError
from moto.cloudformation.models import ChangeSet, CloudFormationBackend, Event, Stack
from moto.cloudformation.responses import CloudFormationResponse
from moto.core.responses import ActionResult, EmptyResult

from tests.local_aws.resource_types import RESOURCE_TYPES
from tests.local_aws.stack_resources import DeploymentError, Resources

EXECUTING = "EXECUTE_IN_PROGRESS"
DELETING = "DELETE_IN_PROGRESS"
EVENTS_PER_PAGE = 100


class ChangeSetNotFound(CloudFormationError):
    code = "ChangeSetNotFound"


@dataclass(frozen=True)
class Deployed:
    """Template and parameters of a stack's last deployment."""

    template: Any
    """Text, as moto keeps it."""
    parsed: dict[str, Any]
    parameters: dict[str, Any]
    tags: dict[str, str]


class LocalStack(Stack):
    """moto's stack, with ``Resources`` instead of moto's own."""

    def _create_resource_map(self) -> Resources:
        backend = models.cloudformation_backends[self.account_id][self.region_name]
        resources = Resources(self, backend.exports, self.report)
        if self.template_dict:
            resources.load()
        return resources

    @property
    def stack_parameters(self) -> dict[str, Any]:
        """Parameters as given, for UsePreviousValue, because moto passes resolved SSM parameters on."""
        declared = self.template_dict.get("Parameters", {})
        return {
            name: self.parameters.get(name, item.get("Default")) for name, item in declared.items()
        }

    def report(
        self,
        logical_id: str,
        type_name: str,
        status: str,
        physical_id: str = "",
        reason: str | None = None,
    ) -> None:
        """Append an event; the CDK CLI prints them."""
        self.events.append(
            Event(
                self.stack_id, self.name, logical_id, physical_id, type_name, status, reason, None
            )
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
                    stack.name,
                    message=f"Export {name} cannot be deleted as it is in use by {users}",
                )


def _publish_exports(backend: CloudFormationBackend, stack: Stack) -> None:
    """Replace the exports of ``stack`` by those of its present outputs."""
    for name in [n for n, e in backend.exports.items() if e.exporting_stack_id == stack.stack_id]:
        del backend.exports[name]
    for export in stack.exports:
        if export.name in backend.exports:
            raise ValidationError(
                stack.name, message=f"Export {export.name} exists in another stack"
            )
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
    name = request._get_param("ChangeSetName")
    stack = request._get_param("StackName")
    for change_set in request.cloudformation_backend.change_sets.values():
        if name == change_set.change_set_id:
            return change_set
        if name == change_set.change_set_name and stack in (
            change_set.stack_name,
            change_set.stack_id,
        ):
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


def describe_stack_events(self: CloudFormationResponse) -> ActionResult:
    """A page of events, the newest first; the CDK CLI polls them, and reads on until it knows one.

    A token is the number of older events.
    """
    events = self.cloudformation_backend.describe_stack_events(self._get_param("StackName"))
    token = self._get_param("NextToken")
    end = len(events) if token is None else int(token)
    begin = max(0, end - EVENTS_PER_PAGE)
    page = {"StackEvents": events[begin:end][::-1]}
    return ActionResult(page | ({"NextToken": str(begin)} if begin else {}))


def execute_change_set(self: CloudFormationResponse) -> ActionResult:
    """Deploy a change set; a client that did not wait for the end and asks again gets no second one."""
    change_set = find_change_set(self)
    assert change_set is not None
    if change_set.execution_status != EXECUTING:
        change_set.execution_status = EXECUTING
        deploy(self.cloudformation_backend, change_set)
    return EmptyResult()


def deploy(backend: CloudFormationBackend, change_set: ChangeSet) -> None:
    """Deploy a change set; a failed one is rolled back, by deletion or to the template before."""
    stack = backend.stacks[change_set.stack_id]
    assert isinstance(stack, LocalStack)
    kind = change_set.change_set_type
    before = Deployed(stack.template, stack.template_dict, stack.parameters, stack.tags)
    stack.report_stack(f"{kind}_IN_PROGRESS", "User Initiated")
    try:
        stack.resource_map.update(change_set.template_dict, change_set.parameters)
        stack.template = change_set.template
        stack.parameters = change_set.parameters
        stack.tags = change_set.tags or {}
        stack._parse_template()
        stack.output_map = stack._create_output_map()
        list(stack.output_map.values())  # resolved now, so that a wrong one fails the stack
        _guard_exports(backend, stack, {export.name: export.value for export in stack.exports})
        _publish_exports(backend, stack)
    except Exception as error:  # any failure fails the stack and becomes its reason
        if kind == "UPDATE":
            _roll_back(stack, before, str(error))
        else:
            stack.report_stack("ROLLBACK_IN_PROGRESS", str(error))
            resources = stack.resource_map
            assert isinstance(resources, Resources)
            resources.delete(created=False)
            stack.report_stack("ROLLBACK_COMPLETE", str(error))
    else:
        stack.report_stack(f"{kind}_COMPLETE")
    change_set.execution_status = "EXECUTE_COMPLETE"


def _roll_back(stack: LocalStack, before: Deployed, reason: str) -> None:
    """Deploy the earlier template over what a failed update made; exports are still the earlier ones."""
    stack.report_stack("UPDATE_ROLLBACK_IN_PROGRESS", reason)
    resources = stack.resource_map
    assert isinstance(resources, Resources)
    try:
        resources.update(before.parsed, before.parameters, rolling_back=True)
    except DeploymentError as error:
        stack.report_stack("UPDATE_ROLLBACK_FAILED", str(error))
        return
    stack.template = before.template
    stack.parameters = before.parameters
    stack.tags = before.tags
    stack._parse_template()
    stack.output_map = stack._create_output_map()
    stack.report_stack("UPDATE_ROLLBACK_COMPLETE", reason)


def delete_stack(self: CloudFormationBackend, name_or_stack_id: str) -> None:
    """Delete a stack; one that cannot be deleted stays, as DELETE_FAILED."""
    for stack in list(self.stacks.values()):
        if name_or_stack_id in (stack.name, stack.stack_id) and stack.status != DELETING:
            _guard_exports(self, stack, {})
            assert isinstance(stack, LocalStack)
            stack.report_stack(DELETING, "User Initiated")
            try:
                stack.resource_map.delete()
            except DeploymentError as error:
                stack.report_stack("DELETE_FAILED", str(error))
                return
            stack.template_dict = {"Resources": {}}
            stack.output_map = stack._create_output_map()
            _publish_exports(self, stack)
            self.deleted_stacks[stack.stack_id] = self.stacks.pop(stack.stack_id)
            for key in [k for k, v in self.change_sets.items() if v.stack_id == stack.stack_id]:
                del self.change_sets[key]
            stack.report_stack("DELETE_COMPLETE")


def install() -> None:
    """Put this engine in place of moto's."""
    models.Stack = LocalStack  # type: ignore[misc]
    CloudFormationBackend.create_change_set = create_change_set  # type: ignore[method-assign]
    CloudFormationResponse.describe_change_set = describe_change_set  # type: ignore[method-assign]
    CloudFormationResponse.delete_change_set = delete_change_set  # type: ignore[method-assign]
    CloudFormationResponse.describe_stack_events = describe_stack_events  # type: ignore[method-assign]
    CloudFormationResponse.execute_change_set = execute_change_set  # type: ignore[method-assign]
    CloudFormationBackend.delete_stack = delete_stack  # type: ignore[method-assign]
