"""The resources of a cluster's templates, and which of them refer to which, across stacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tools.template_references import imported_exports, referenced_resources

Templates = Mapping[str, Mapping[str, Any]]
"""By construct id of their stack."""
ResourceId = tuple[str, str]
"""Construct id of the stack, and logical id."""
NAMES = ("BucketName", "RepositoryName")
"""By which resources are referred to in texts, where a deployment is to know them beforehand."""


@dataclass(frozen=True)
class Resource:
    stack: str
    logical_id: str
    kind: str
    properties: Mapping[str, Any]
    path: str
    """Of its construct, without the stack."""


class TemplateGraph:
    """All resources, by stack and logical id, and the references between them."""

    def __init__(self, templates: Templates) -> None:
        self.resources = {
            (stack, name): Resource(
                stack,
                name,
                found["Type"],
                found.get("Properties", {}),
                found.get("Metadata", {}).get("aws:cdk:path", name).partition("/")[2],
            )
            for stack, template in sorted(templates.items())
            for name, found in sorted(template.get("Resources", {}).items())
        }
        self._exports = {
            output["Export"]["Name"]: (stack, name)
            for stack, template in templates.items()
            for output in template.get("Outputs", {}).values()
            if "Export" in output
            for name in referenced_resources(output["Value"])
        }
        self._names = {
            text: key
            for key, resource in self.resources.items()
            for name in NAMES
            if (text := written(resource.properties.get(name)))
        }

    def of_kind(self, *kinds: str) -> list[Resource]:
        return [resource for resource in self.resources.values() if resource.kind in kinds]

    def referred(self, stack: str, value: Any) -> set[ResourceId]:
        """What a piece of a stack's template refers to: by reference, by import, or by a name in a text."""
        own = {(stack, name) for name in referenced_resources(value) if (stack, name) in self.resources}
        imported = {self._exports[name] for name in imported_exports(value) if name in self._exports}
        text = " ".join(_texts(value))
        return own | imported | {key for name, key in self._names.items() if name in text}


def written(value: Any) -> str:
    """A value as text; what a deployment fills in stands in braces."""
    match value:
        case {"Fn::Join": [str(separator), [*parts]]}:
            return separator.join(map(written, parts))
        case {"Ref": str(name)}:
            return f"{{{name}}}"
        case str(text):
            return text
    return ""


def _texts(value: Any) -> Iterator[str]:
    if text := written(value):
        yield text
    elif isinstance(value, Mapping):
        yield from _all_texts(value.values())
    elif isinstance(value, list):
        yield from _all_texts(value)


def _all_texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        yield from _texts(value)
