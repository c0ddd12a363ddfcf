"""Members of HyperPod's requests in botocore, and of its types in CloudFormation's registry and the CDK."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.loaders import Loader
from botocore.model import ListShape, MapShape, ServiceModel, Shape, StructureShape

SERVICE = "sagemaker"
REQUEST = re.compile(r"Cluster|ComputeQuota|TrainingPlan|ReservedCapacity")
"""Names of the requests about HyperPod; SageMaker has no other clusters."""
CDK_MODULE = Path("aws_cdk", "aws_sagemaker", "__init__.py")
"""Module of the CDK with SageMaker's types, below the folder of installed packages."""
CDK_STRUCTURE = re.compile(
    r'jsii_type="aws-cdk-lib\.aws_sagemaker\.'
    r"(Cfn(?:Cluster|ComputeQuota|TrainingPlan|Extension)[\w.]*)\","
    r"\s*jsii_struct_bases=\[\],\s*name_mapping=(\{[^}]*\})"
)
"""Structure of a CDK type, and its members by name in Python."""


@dataclass(frozen=True)
class Member:
    """Parameter of a request without members of its own."""

    path: str
    """Names from the request down, as ``InstanceGroups[].InstanceCount``; ``[]`` is any item of a list."""
    values: tuple[str, ...]
    """Values that the service accepts; empty if it lists none."""


@dataclass(frozen=True)
class Property:
    """Property of a CloudFormation type."""

    values: tuple[str, ...]
    """Values that the schema accepts; empty if it lists none."""
    is_read_only: bool


def service_model(folder: Path | None = None) -> ServiceModel:
    """Return botocore's model of SageMaker.

    Args:
        folder: folder of installed packages with another version of botocore; by default the one in use.
    """
    if folder is None:
        return ServiceModel(Loader().load_service_model(SERVICE, "service-2"))
    data = folder / "botocore" / "data"
    if not data.is_dir():
        raise ValueError(f"{folder} has no botocore; unpack its wheel there")
    loader = Loader(extra_search_paths=[str(data)], include_default_search_paths=False)
    return ServiceModel(loader.load_service_model(SERVICE, "service-2"))


def request_members(model: ServiceModel) -> dict[str, list[Member]]:
    """Return the members of each request about HyperPod, by the request's name."""
    return {
        name: list(_members(model.operation_model(name).input_shape, "", ()))
        for name in model.operation_names
        if REQUEST.search(name)
    }


def _members(shape: Shape | None, path: str, above: tuple[str, ...]) -> Iterator[Member]:
    """Yield the members below a shape that have no members of their own.

    Args:
        shape: parameter of a request, or the whole request.
        path: names from the request down to the shape.
        above: names of the shapes above, so that the walk ends if a shape contains itself.
    """
    if isinstance(shape, StructureShape) and shape.members and shape.name not in above:
        for name, member in shape.members.items():
            below = f"{path}.{name}" if path else name
            yield from _members(member, below, (*above, shape.name))
    elif isinstance(shape, ListShape) and isinstance(shape.member, StructureShape | ListShape):
        yield from _members(shape.member, f"{path}[]", above)
    elif path:
        innermost: Any = shape.member if isinstance(shape, ListShape) else shape
        values = () if isinstance(shape, MapShape) else tuple(getattr(innermost, "enum", ()))
        yield Member(path, values)


def type_properties(schema: Mapping[str, Any]) -> dict[str, Property]:
    """Return the properties of a type's schema in CloudFormation's registry, by path as in ``Member``."""
    read_only = {
        pointer.removeprefix("/properties/").replace("/*/", "[]/").replace("/", ".")
        for pointer in schema.get("readOnlyProperties", [])
    }
    found: dict[str, Property] = {}

    def resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in node:
            node = schema["definitions"][node["$ref"].rpartition("/")[2]]
        return node

    def add(node: Mapping[str, Any], path: str) -> None:
        node = resolved(node)
        items = resolved(node.get("items", {}))
        values = tuple(node.get("enum") or items.get("enum") or ())
        found[path] = Property(values, path in read_only)
        if items:
            add_below(items, f"{path}[]")
        add_below(node, path)

    def add_below(node: Mapping[str, Any], path: str) -> None:
        node = resolved(node)
        # Some types describe the alternatives of a structure beside its properties, or instead of them.
        for part in (node, *node.get("oneOf", []), *node.get("anyOf", [])):
            for name, property_ in part.get("properties", {}).items():
                if isinstance(property_, dict) and property_:
                    add(property_, f"{path}.{name}" if path else name)

    add_below(schema, "")
    return found


def cdk_members(folder: Path) -> set[str]:
    """Return the members of the CDK's HyperPod types, as ``CfnClusterProps.clusterName``.

    Args:
        folder: folder of installed packages.
    """
    module = folder / CDK_MODULE
    if not module.is_file():
        raise ValueError(f"{folder} has no aws-cdk-lib; unpack its wheel there")
    return {
        f"{structure}.{name}"
        for structure, mapping in CDK_STRUCTURE.findall(module.read_text())
        for name in ast.literal_eval(mapping).values()
    }
