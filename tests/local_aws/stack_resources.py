"""A stack's resources: created, changed and deleted in the order of their dependencies."""

from __future__ import annotations

from typing import Any, Protocol

from moto.cloudformation.models import Stack
from moto.cloudformation.parsing import Export, ResourceMap, clean_json

from tests.local_aws.resource_model import Context, Resource, ResourceType
from tests.local_aws.resource_types import RESOURCE_TYPES


class DeploymentError(Exception):
    """A resource could not be created, changed or deleted."""


class Report(Protocol):
    """Adds an event to the stack's."""

    def __call__(
        self,
        logical_id: str,
        type_name: str,
        status: str,
        physical_id: str = "",
        reason: str | None = None,
    ) -> None: ...


class Resources(ResourceMap):
    """The resources of one stack; looking one up deploys it, and what it refers to, first."""

    def __init__(self, stack: Stack, exports: dict[str, Export], report: Report) -> None:
        super().__init__(
            stack.stack_id,
            stack.name,
            stack.parameters,
            stack.tags,
            region_name=stack.region_name,
            account_id=stack.account_id,
            template=stack.template_dict,
            cross_stack_resources=exports,
        )
        self.stack_name = stack.name
        self.report = report
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

    def update(
        self,
        template: dict[str, Any],
        parameters: dict[str, Any] | None = None,
        *,
        rolling_back: bool = False,
    ) -> None:
        """Deploy ``template`` over the existing resources, which are none at first.

        With ``rolling_back`` this undoes a failed update: what it added is deleted as never deployed.

        Raises DeploymentError; what was deployed until then stays in ``deployed``.
        """
        declared_before = self._resource_json_map
        self.previous = self.deployed
        self.deployed = {}
        self._template = template
        self._resource_json_map = template["Resources"]
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
            self._remove(
                self.previous[logical_id], declared_before[logical_id], created=not rolling_back
            )

    def delete(self, *, created: bool = True) -> None:
        """Delete the resources, dependants first, except those that their policies retain.

        ``created`` is false while a first deployment that failed is rolled back.
        """
        for logical_id in reversed(list(self.deployed)):
            self._remove(
                self.deployed[logical_id], self._resource_json_map[logical_id], created=created
            )
            del self.deployed[logical_id]

    def _deploy(self, logical_id: str, declaration: dict[str, Any]) -> Resource | None:
        condition = declaration.get("Condition")
        if condition and not self.lazy_condition_map[condition]:
            return None
        depends_on = declaration.get("DependsOn", [])
        for dependency in [depends_on] if isinstance(depends_on, str) else depends_on:
            self[dependency]
        context = Context(self._region_name, self._account_id, self.stack_name, logical_id)
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
            self.report(logical_id, declaration["Type"], f"{verb}_FAILED", reason=str(cause))
            raise DeploymentError(f"{logical_id}: {cause}") from cause
        self.deployed[logical_id] = resource
        if resource is not old:
            self.report(
                logical_id, declaration["Type"], f"{verb}_COMPLETE", resource.physical_resource_id
            )
        return resource

    def _remove(
        self, resource: Resource, declaration: dict[str, Any], *, created: bool = True
    ) -> None:
        logical_id = resource.logical_resource_id
        physical_id = resource.physical_resource_id
        policy = declaration.get("DeletionPolicy", "Delete")
        if policy == "RetainExceptOnCreate":
            policy = "Retain" if created else "Delete"
        if policy == "Retain":
            self.report(logical_id, resource.type, "DELETE_SKIPPED", physical_id)
            return
        try:
            RESOURCE_TYPES[resource.type].delete(resource, policy)
        except Exception as cause:
            self.report(logical_id, resource.type, "DELETE_FAILED", physical_id, str(cause))
            raise DeploymentError(f"{logical_id}: {cause}") from cause
        self.report(logical_id, resource.type, "DELETE_COMPLETE", physical_id)
