"""Which properties of a resource CloudFormation can only change by replacing it."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

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
"""Missing in the registry's schema; "Update requires: Replacement" in CloudFormation's template reference."""
MARIADB_IN_PLACE = frozenset({("MultiAZ",), ("BackupRetentionPeriod",)})
"""Conditional in the schema for other engines' sake."""
FSX_BY_OTHER_CALLS = {"Options", "RootVolumeConfiguration", "RouteTableIds"}
"""Properties of OpenZFS that are changed, but not by UpdateFileSystem's parameter of that name."""


class CreateOnly(NamedTuple):
    always: frozenset[Path]
    sometimes: frozenset[Path]
    """Replaced, or the update is refused, for some values; the schemas do not say which."""


@cache
def create_only(resource_type: str, region: str) -> CreateOnly:
    """From the registry's schemas, bundled with cfn-lint; nothing for types that are not in the registry."""
    try:
        schema: dict[str, Any] = PROVIDER_SCHEMA_MANAGER.get_resource_schema(region, resource_type).schema
    except ResourceNotFoundError:
        return CreateOnly(frozenset(), frozenset())
    always = frozenset(map(_path, schema.get("createOnlyProperties", [])))
    sometimes = frozenset(map(_path, schema.get("conditionalCreateOnlyProperties", [])))
    if resource_type == "AWS::RDS::DBInstance":
        sometimes -= MARIADB_IN_PLACE
    if resource_type == FSX:
        always |= FSX_DOCUMENTED
        sometimes |= _not_updatable_in_fsx(schema) - always
    return CreateOnly(always, sometimes)


def _path(pointer: str) -> Path:
    return tuple(pointer.removeprefix("/properties/").split("/"))


def _not_updatable_in_fsx(schema: dict[str, Any]) -> frozenset[Path]:
    """What FSx's own UpdateFileSystem has no parameter for, so that the old file system cannot be changed."""
    model = botocore.session.get_session().get_service_model("fsx")
    update: Any = model.operation_model("UpdateFileSystem").input_shape
    return frozenset(
        (name, member)
        for name in ("LustreConfiguration", "OpenZFSConfiguration")
        for member in schema["definitions"][name]["properties"]
        if member not in update.members[name].members and member not in FSX_BY_OTHER_CALLS
    )
