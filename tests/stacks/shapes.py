"""Checks of requests that botocore's model describes but does not enforce: enums, patterns and maxima."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import botocore.session
import regex  # the models' patterns use \p{...}, which re lacks
from botocore.model import ListShape, MapShape, Shape, StructureShape


@cache
def request_shape(operation: str) -> StructureShape:
    """Return the input shape of an operation of SageMaker."""
    model = botocore.session.get_session().get_service_model("sagemaker")
    shape = model.operation_model(operation).input_shape
    assert isinstance(shape, StructureShape)
    return shape


def create_cluster_shape() -> StructureShape:
    return request_shape("CreateCluster")


def violations(shape: Shape, value: Any, path: str = "") -> Iterator[str]:
    """One line for everything in the value that the shape forbids."""
    types: dict[str, Any] = {
        "structure": dict,
        "map": dict,
        "list": list,
        "string": str,
        "integer": int,
        "float": (int, float),
        "double": (int, float),
        "boolean": bool,
        "timestamp": str,
    }
    if not isinstance(value, types[shape.type_name]) or (
        shape.type_name == "integer" and value is True
    ):
        yield f"{path}: {value!r} is no {shape.type_name}"
        return
    if isinstance(shape, StructureShape):
        yield from _structure(shape, value, path)
        return
    if isinstance(shape, MapShape):
        for key, item in value.items():
            yield from violations(shape.key, key, f"{path}[{key}]")
            yield from violations(shape.value, item, f"{path}.{key}")
    size = (
        value
        if shape.type_name == "integer"
        else len(value)
        if isinstance(value, str | list | dict)
        else None
    )
    if size is not None:
        yield from _range(shape, size, path)
    if isinstance(shape, ListShape):
        for index, item in enumerate(value):
            yield from violations(shape.member, item, f"{path}[{index}]")
    enum = shape.metadata.get("enum")
    pattern = shape.metadata.get("pattern", "")
    # Some write what lies beyond 16 bits as Java does.
    pattern = pattern.replace(r"\uD800\uDC00-\uDBFF\uDFFF", r"\U00010000-\U0010FFFF")
    if enum and value not in enum:
        yield f"{path}: {value!r} is not one of {enum}"
    if pattern and not regex.fullmatch(pattern, value):
        yield f"{path}: {value!r} does not match {pattern}"


def _structure(shape: StructureShape, value: dict[str, Any], path: str) -> Iterator[str]:
    for name in shape.required_members:
        if name not in value:
            yield f"{path}: {name} is missing"
    for name, item in value.items():
        if name in shape.members:
            yield from violations(shape.members[name], item, f"{path}.{name}")
        else:
            yield f"{path}: {name} is unknown"


def _range(shape: Shape, size: int, path: str) -> Iterator[str]:
    if size < shape.metadata.get("min", size):
        yield f"{path}: {size} is less than {shape.metadata['min']}"
    if size > shape.metadata.get("max", size):
        yield f"{path}: {size} is more than {shape.metadata['max']}"
