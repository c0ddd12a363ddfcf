"""Resources that an update of a stack replaces or deletes, and references in templates."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import botocore.session
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER, ResourceNotFoundError  # type: ignore[import-untyped]

Path = tuple[str, ...]
"""Names from the resource's properties downwards; * is every item of a list."""

FSX_DOCUMENTED = frozenset(
    {
        ("StorageType",),
        ("LustreConfiguration", "CopyTagsToBackups"),
        ("LustreConfiguration", "DeploymentType"),
        ("OpenZFSConfiguration", "DeploymentType"),
    }
)
"""Missing in the registry's schema; "Update requires: Replacement" in CloudFormation's template reference."""
MARIADB_IN_PLACE = frozenset({("MultiAZ",), ("BackupRetentionPeriod",)})
"""Conditional in the schema for other engines' sake."""
FSX_BY_OTHER_CALLS = {"Options", "RootVolumeConfiguration", "RouteTableIds"}
"""Properties of OpenZFS that are changed, but not by UpdateFileSystem's parameter of that name."""
Template = dict[str, Any]
Kind = Literal["is replaced", "may be replaced", "is deleted"]

KEPT = {"Retain", "RetainExceptOnCreate"}
IN_SUB = re.compile(r"\$\{([A-Za-z0-9]+)(?:\.[^}]+)?\}")
"""``${LogicalId}`` and ``${LogicalId.Attribute}``, not ``${!Literal}`` or ``${AWS::Region}``."""


@dataclass(frozen=True)
class Loss:
    """A resource that does not survive an update."""

    logical_id: str
    old: dict[str, Any]
    """Its definition in the old template, whose policies decide what becomes of it."""
    kind: Kind
    reason: str

    @property
    def resource_type(self) -> str:
        return str(self.old["Type"])

    @property
    def is_kept(self) -> bool:
        """Whether the old one stays in the account, outside of the stack."""
        policy = "DeletionPolicy" if self.kind == "is deleted" else "UpdateReplacePolicy"
        return self.old.get(policy) in KEPT


def find_losses(old: Template, new: Template, *, region: str, changed_exports: set[str]) -> list[Loss]:
    """Compare two templates of one stack.

    ``changed_exports`` are names of other stacks' exports whose value changes in the same deployment.
    """
    losses: dict[str, Loss] = {}
    after = new["Resources"]
    for logical_id, resource in old["Resources"].items():
        if logical_id not in after:
            losses[logical_id] = Loss(logical_id, resource, "is deleted", "it is no longer in the template")
        elif resource["Type"] != after[logical_id]["Type"]:
            reason = f"now {after[logical_id]['Type']}"
            losses[logical_id] = Loss(logical_id, resource, "is replaced", reason)
        elif own := _own_change(resource, after[logical_id], region):
            losses[logical_id] = Loss(logical_id, resource, *own)
    # A replaced resource has a new id, so resources that were created with the old id are replaced too.
    while spread := list(_spread(old, new, losses, region, changed_exports)):
        losses.update({loss.logical_id: loss for loss in spread})
    return list(losses.values())


def exports_of(template: Template, logical_ids: set[str] | None = None) -> set[str]:
    """Names of the exports whose value comes from any of these resources, or of all exports."""
    return {
        output["Export"]["Name"]
        for output in template.get("Outputs", {}).values()
        if isinstance(output.get("Export", {}).get("Name"), str)
        and (logical_ids is None or referenced_resources(output["Value"]) & logical_ids)
    }


def _own_change(old: dict[str, Any], new: dict[str, Any], region: str) -> tuple[Kind, str] | None:
    kinds: tuple[Kind, Kind] = ("is replaced", "may be replaced")
    for kind, paths in zip(kinds, create_only(old["Type"], region), strict=True):
        for path in sorted(paths):
            before, after = (_values(side.get("Properties", {}), path) for side in (old, new))
            if before != after:
                return kind, f"{'.'.join(path)} changes from {_show(before)} to {_show(after)}"
    return None


def _spread(
    old: Template, new: Template, losses: dict[str, Loss], region: str, changed_exports: set[str]
) -> Iterator[Loss]:
    gone = {logical_id for logical_id, loss in losses.items() if loss.kind == "is replaced"}
    for logical_id, resource in old["Resources"].items():
        if logical_id in gone or logical_id not in new["Resources"]:
            continue
        properties = new["Resources"][logical_id].get("Properties", {})
        always, _ = create_only(resource["Type"], region)
        for path in sorted(always):
            value = _values(properties, path)
            causes = (referenced_resources(value) & gone) | (imported_exports(value) & changed_exports)
            if causes:
                reason = f"{'.'.join(path)} is taken from {', '.join(sorted(causes))}, which is replaced"
                yield Loss(logical_id, resource, "is replaced", reason)
                break


def _values(properties: Any, path: Path) -> list[Any]:
    """Everything at the path; empty if nothing is there."""
    if not path:
        return [properties]
    head, *rest = path
    if head == "*":
        items = properties if isinstance(properties, list) else []
        return [value for item in items for value in _values(item, tuple(rest))]
    if not isinstance(properties, dict) or head not in properties:
        return []
    return _values(properties[head], tuple(rest))


def _show(values: list[Any]) -> str:
    if not values:
        return "nothing"
    text = str(values[0] if len(values) == 1 else values)
    return text if len(text) <= 80 else f"{text[:77]}..."


@cache
def create_only(resource_type: str, region: str) -> tuple[frozenset[Path], frozenset[Path]]:
    """Return properties that always replace the resource, and those that may, for types in the registry.

    The rules are those of its schemas, bundled with cfn-lint. They do not say which values of the latter
    replace the resource, or are refused.
    """
    try:
        schema: dict[str, Any] = PROVIDER_SCHEMA_MANAGER.get_resource_schema(region, resource_type).schema
    except ResourceNotFoundError:
        return frozenset(), frozenset()
    always = frozenset(map(_path, schema.get("createOnlyProperties", [])))
    sometimes = frozenset(map(_path, schema.get("conditionalCreateOnlyProperties", [])))
    if resource_type == "AWS::RDS::DBInstance":
        sometimes -= MARIADB_IN_PLACE
    if resource_type == "AWS::FSx::FileSystem":
        always |= FSX_DOCUMENTED
        sometimes |= _not_updatable_in_fsx(schema) - always
    return always, sometimes


def _path(pointer: str) -> Path:
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
    """Logical ids (and parameters) in Ref, Fn::GetAtt and Fn::Sub."""
    return {name for kind, name in _references(value) if kind == "resource"}


def imported_exports(value: Any) -> set[str]:
    """Names of exports in Fn::ImportValue, as far as they are literal."""
    return {name for kind, name in _references(value) if kind == "import"}


def _references(value: Any) -> Iterator[tuple[str, str]]:
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
