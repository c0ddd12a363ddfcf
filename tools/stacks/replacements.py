"""Resources that an update of a stack replaces or deletes, and references in templates."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import botocore.session
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER, ResourceNotFoundError  # type: ignore[import-untyped]

Path = tuple[str, ...]
"""Names from the resource's properties downwards; * is every item of a list."""

FSX = "AWS::FSx::FileSystem"
FSX_DOCUMENTED = frozenset(
    {
        ("StorageType",),
        ("LustreConfiguration", "CopyTagsToBackups"),
        ("LustreConfiguration", "DeploymentType"),
        ("OpenZFSConfiguration", "DeploymentType"),
    }
)
"""Properties of FSx that replace the file system according to CloudFormation's template reference, but not to
the registry's schema."""
MARIADB = "AWS::RDS::DBInstance"
MARIADB_IN_PLACE = frozenset({("MultiAZ",), ("BackupRetentionPeriod",)})
"""Properties of a database that the schema lists as conditional because of other engines. MariaDB changes
them in place."""
FSX_BY_OTHER_CALLS = {"Options", "RootVolumeConfiguration", "RouteTableIds"}
"""Properties of OpenZFS that change in place, but not by a parameter of UpdateFileSystem with that name."""
MAX_SHOWN_CHARACTERS = 80
"""Most characters of a value that a message shows."""
Template = dict[str, Any]
Kind = Literal["is replaced", "may be replaced", "is deleted"]

KEPT = {"Retain", "RetainExceptOnCreate"}
"""Policies with which a resource outlives its stack."""
IN_SUB = re.compile(r"\$\{([A-Za-z0-9]+)(?:\.[^}]+)?\}")
"""``${LogicalId}`` and ``${LogicalId.Attribute}``, not ``${!Literal}`` or ``${AWS::Region}``."""


@dataclass(frozen=True)
class Loss:
    """A resource that does not survive an update."""

    logical_id: str
    old: dict[str, Any]
    """Definition in the old template. Its policies decide whether the old resource is deleted or kept."""
    kind: Kind
    reason: str

    @property
    def resource_type(self) -> str:
        return str(self.old["Type"])

    @property
    def is_kept(self) -> bool:
        """Return whether the old resource stays in the account, outside of the stack."""
        policy = "DeletionPolicy" if self.kind == "is deleted" else "UpdateReplacePolicy"
        return self.old.get(policy) in KEPT


def find_losses(
    old: Template, new: Template, *, region: str, changed_exports: set[str]
) -> list[Loss]:
    """Compare two templates of one stack.

    Args:
        old: template before the update.
        new: template after the update.
        region: region of the stack, for the rules of its resource types.
        changed_exports: names of other stacks' exports with values that change in the same deployment.
    """
    losses: dict[str, Loss] = {}
    after = new["Resources"]
    for logical_id, resource in old["Resources"].items():
        if logical_id not in after:
            losses[logical_id] = Loss(
                logical_id, resource, "is deleted", "it is no longer in the template"
            )
        elif resource["Type"] != after[logical_id]["Type"]:
            reason = f"now {after[logical_id]['Type']}"
            losses[logical_id] = Loss(logical_id, resource, "is replaced", reason)
        elif loss := _own_change(logical_id, resource, after[logical_id], region):
            losses[logical_id] = loss
    # A replaced resource has a new id, so resources that were created with the old id are replaced too.
    while spread := list(_spread(old, new, losses, region, changed_exports)):
        losses.update({loss.logical_id: loss for loss in spread})
    return list(losses.values())


def exports_of(template: Template, logical_ids: set[str] | None = None) -> set[str]:
    """Return the names of exports: those with a value from one of these resources, or all."""
    names = set()
    for output in template.get("Outputs", {}).values():
        name = output.get("Export", {}).get("Name")
        if not isinstance(name, str):
            continue
        if logical_ids is None or referenced_resources(output["Value"]) & logical_ids:
            names.add(name)
    return names


def _own_change(
    logical_id: str, old: dict[str, Any], new: dict[str, Any], region: str
) -> Loss | None:
    """Return the loss due to a change of the resource's own properties, if any."""
    rules = create_only(old["Type"], region)
    if reason := _first_change(old, new, rules.always):
        return Loss(logical_id, old, "is replaced", reason)
    if reason := _first_change(old, new, rules.sometimes):
        return Loss(logical_id, old, "may be replaced", reason)
    return None


def _first_change(old: dict[str, Any], new: dict[str, Any], paths: frozenset[Path]) -> str:
    """Describe the first change at one of the paths; empty if there is no change."""
    for path in sorted(paths):
        before = _values(old.get("Properties", {}), path)
        after = _values(new.get("Properties", {}), path)
        if before != after:
            return f"{'.'.join(path)} changes from {_shown(before)} to {_shown(after)}"
    return ""


def _spread(
    old: Template, new: Template, losses: dict[str, Loss], region: str, changed_exports: set[str]
) -> Iterator[Loss]:
    """Yield resources that are replaced because they refer to replaced resources or changed exports."""
    replaced = {logical_id for logical_id, loss in losses.items() if loss.kind == "is replaced"}
    for logical_id, resource in old["Resources"].items():
        if logical_id in replaced or logical_id not in new["Resources"]:
            continue
        properties = new["Resources"][logical_id].get("Properties", {})
        for path in sorted(create_only(resource["Type"], region).always):
            value = _values(properties, path)
            causes = (referenced_resources(value) & replaced) | (
                imported_exports(value) & changed_exports
            )
            if causes:
                reason = (
                    f"{'.'.join(path)} is taken from {', '.join(sorted(causes))}, which is replaced"
                )
                yield Loss(logical_id, resource, "is replaced", reason)
                break


def _values(properties: Any, path: Path) -> list[Any]:
    """Return all values at the path; empty if there are none."""
    if not path:
        return [properties]
    head, *rest = path
    if head == "*":
        items = properties if isinstance(properties, list) else []
        return [value for item in items for value in _values(item, tuple(rest))]
    if not isinstance(properties, dict) or head not in properties:
        return []
    return _values(properties[head], tuple(rest))


def _shown(values: list[Any]) -> str:
    if not values:
        return "nothing"
    text = str(values[0] if len(values) == 1 else values)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[: MAX_SHOWN_CHARACTERS - 3]}..."


class CreateOnly(NamedTuple):
    """Properties that cannot change in place."""

    always: frozenset[Path]
    """Properties that replace the resource with any change."""
    sometimes: frozenset[Path]
    """Properties that replace the resource with some changes. The schemas do not say which changes replace
    it, and which ones are refused."""


@cache
def create_only(resource_type: str, region: str) -> CreateOnly:
    """Return the rules of a resource type from the registry's schemas, which cfn-lint contains."""
    try:
        schema: dict[str, Any] = PROVIDER_SCHEMA_MANAGER.get_resource_schema(
            region, resource_type
        ).schema
    except ResourceNotFoundError:
        return CreateOnly(always=frozenset(), sometimes=frozenset())
    always = frozenset(map(_path, schema.get("createOnlyProperties", [])))
    sometimes = frozenset(map(_path, schema.get("conditionalCreateOnlyProperties", [])))
    if resource_type == MARIADB:
        sometimes -= MARIADB_IN_PLACE
    if resource_type == FSX:
        always |= FSX_DOCUMENTED
        sometimes |= _not_updatable_in_fsx(schema) - always
    return CreateOnly(always, sometimes)


def _path(pointer: str) -> Path:
    """Return the path of a JSON pointer in the schema."""
    return tuple(pointer.removeprefix("/properties/").split("/"))


def _not_updatable_in_fsx(schema: dict[str, Any]) -> frozenset[Path]:
    """Return the properties that cannot change in place: FSx's UpdateFileSystem has no parameter for them."""
    model = botocore.session.get_session().get_service_model("fsx")
    update: Any = model.operation_model("UpdateFileSystem").input_shape
    return frozenset(
        (name, member)
        for name in ("LustreConfiguration", "OpenZFSConfiguration")
        for member in schema["definitions"][name]["properties"]
        if member not in update.members[name].members and member not in FSX_BY_OTHER_CALLS
    )


def referenced_resources(value: Any) -> set[str]:
    """Return the logical ids (and parameters) in Ref, Fn::GetAtt and Fn::Sub."""
    return {name for kind, name in _references(value) if kind == "resource"}


def imported_exports(value: Any) -> set[str]:
    """Return the names of exports in Fn::ImportValue, as far as they are literal."""
    return {name for kind, name in _references(value) if kind == "import"}


def _references(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the kind (``resource`` or ``import``) and the name of each reference in a value."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    if not isinstance(value, dict):
        return
    match value:
        case {"Ref": str(name)}:
            yield "resource", name
        case {"Fn::GetAtt": [str(name), *_]}:
            yield "resource", name
        case {"Fn::GetAtt": str(text)}:
            yield "resource", text.partition(".")[0]
        case {"Fn::ImportValue": str(name)}:
            yield "import", name
        case {"Fn::Sub": str(text) | [str(text), *_]}:
            for name in IN_SUB.findall(text):
                yield "resource", name
    for item in value.values():
        yield from _references(item)
