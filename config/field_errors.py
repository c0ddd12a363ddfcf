"""What pydantic says of single values, in the house's form, and the file without those values."""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from config.cluster import ExistingVpc, NewVpc, Section, SlurmCluster
from config.text_forms import FORMS
from config.violation import Violation, shown

Location = tuple[int | str, ...]

_NETWORKS: dict[int | str, type[Section]] = {"new": NewVpc, "existing": ExistingVpc}

_WANTED = {
    "bool_type": ("true or false is allowed", "set true or false"),
    "dict_type": ("a mapping is allowed", "set keys and values below it"),
    "int_type": ("a whole number is allowed", "set a number without quotes and decimal point"),
    "list_type": ("a list is allowed", "write it as [one, other], or with a dash before each item"),
    "invalid_key": ("keys are texts", "remove it"),
    "model_attributes_type": ("a mapping is allowed", "set keys and values below it"),
    "model_type": ("a mapping is allowed", "set keys and values below it"),
    "string_type": ("a text is allowed", "set a text, in quotes if YAML takes it for something else"),
}


def field_violations(error: ValidationError, document: dict[str, Any]) -> list[Violation]:
    """One for each value that ``SlurmCluster`` does not take; ``document`` has the names of the groups."""
    all_details = error.errors(include_url=False)
    meant = {
        (*details["loc"][:-1], _meant(details))
        for details in all_details
        if details["type"] == "extra_forbidden"
    }
    # A key that is missing because it is mistyped is told of once.
    return [
        _violation(details, document)
        for details in all_details
        if details["type"] != "missing" or details["loc"] not in meant
    ]


def without_wrong_values(error: ValidationError, document: dict[str, Any]) -> dict[str, Any]:
    """A copy of the document in which every value that the error names is left out.

    The value of a mistyped key goes to the key that was meant, so that it can be checked as well. A list with
    a wrong item is left out as a whole, since the places of the other items would move.
    """
    rest = copy.deepcopy(document)
    for details in error.errors(include_url=False):
        if details["type"] in ("missing", "union_tag_not_found"):
            continue
        location = _in_document(details)
        *parents, key = location[:-1] if isinstance(location[-1], int) and len(location) > 1 else location
        holder: Any = rest
        for part in parents:
            holder = _below(holder, part)
        if not isinstance(holder, dict) or key not in holder:
            continue  # left out with what holds it
        value = holder.pop(key)
        meant = _meant(details) if details["type"] == "extra_forbidden" else None
        if meant:
            holder.setdefault(meant, value)
    return rest


def _violation(details: ErrorDetails, document: dict[str, Any]) -> Violation:
    location, got = _in_document(details), details["input"]
    if details["type"] in ("missing", "union_tag_not_found"):
        got = None
    elif details["type"] == "union_tag_invalid":
        got = details["ctx"]["tag"]
    return Violation(_path(location, document), got, *_allowed_and_fix(details, location, got))


def _allowed_and_fix(details: ErrorDetails, location: Location, got: object) -> tuple[str, str]:
    context = details.get("ctx", {})
    match details["type"]:
        case "missing":
            return "it is required", f"add {location[-1]}"
        case "extra_forbidden":
            meant, keys = _meant(details), ", ".join(_section_at(details["loc"][:-1]).model_fields)
            return "there is no such key", f"set {meant}" if meant else f"remove it, or set one of {keys}"
        case "literal_error":
            return _choice(got, context["expected"])
        case "union_tag_invalid":
            return _choice(got, context["expected_tags"])
        case "union_tag_not_found":
            return "one of new, existing is allowed", "set one of these"
        case "string_pattern_mismatch":
            form = FORMS[context["pattern"]]
            return form.meaning, f"set it in this form, as {form.example}"
        case "greater_than_equal":
            return f"{context['ge']} or more is allowed", f"set {context['ge']}"
        case "less_than_equal":
            return f"{context['le']} or less is allowed", f"set {context['le']}"
        case "string_too_long":
            return f"{context['max_length']} or fewer characters are allowed", "shorten it"
        case "too_long":
            return f"{context['max_length']} or fewer items are allowed", "remove some"
        case "too_short":
            return f"{context['min_length']} or more items are allowed", "add some"
        case "int_type" if isinstance(got, str | float) and re.fullmatch(r"\d+(\.0*)?", str(got)):
            return "a whole number is allowed", f"set {int(float(got))}"
        case "string_type" if isinstance(got, int | float):
            return "a text is allowed", f'set "{shown(got)}"'
        case kind:
            return _WANTED.get(kind, (details["msg"], "set another value"))


def _in_document(details: ErrorDetails) -> Location:
    """Where the value stands in the file.

    Pydantic names the kind of network as if it were a key below it, says of a wrong kind that the network is
    wrong, and marks a wrong key of a mapping with one more part.
    """
    location = tuple(part for part in details["loc"] if part != "[key]")
    if details["type"].startswith("union_tag"):
        return (*location, "vpc")
    if location[0] == "network":
        return (location[0], *location[2:])
    return location


def _path(location: Location, document: dict[str, Any]) -> str:
    """As ``instance_groups[workers].ebs_gib``; items without a usable name are numbered from 0."""
    path, value = "", document
    for part in location:
        value = _below(value, part)
        if isinstance(part, int):
            name = value.get("name") if isinstance(value, dict) else None
            path += f"[{name if isinstance(name, str) else part}]"
        else:
            path += f".{part}" if path else part
    return path


def _below(value: Any, part: int | str) -> Any:
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return value.get(part) if isinstance(value, dict) else None


def _choice(got: object, expected: str) -> tuple[str, str]:
    """From pydantic's list of what it expected: ``'one', 'two' or 3``."""
    names = [text or number for text, number in re.findall(r"'([^']*)'|(\d+)", expected)]
    near = difflib.get_close_matches(got, names, n=1) if isinstance(got, str) else []
    if isinstance(got, int) and names[0].isdigit():
        near = [min(names, key=lambda name: abs(int(name) - got))]
    allowed = f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    return f"{allowed} is allowed", f"set {near[0]}" if near else "set one of these"


def _meant(details: ErrorDetails) -> str | None:
    """The key that an unknown one is most like."""
    *parents, key = details["loc"]
    return next(iter(difflib.get_close_matches(str(key), _section_at(parents).model_fields, n=1)), None)


def _section_at(location: Sequence[int | str]) -> type[Section]:
    section: type[Section] = SlurmCluster
    for part in location:
        if section is SlurmCluster and part == "network":
            continue
        if part in _NETWORKS and not isinstance(part, int):
            section = _NETWORKS[part]
        elif isinstance(part, str):
            section = _section_in(section.model_fields[part].annotation)
    return section


def _section_in(annotation: Any) -> type[Section]:
    """The one section in ``list[Section]``, ``Section | None`` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    inner = [argument for argument in get_args(annotation) if argument is not type(None)]
    return _section_in(inner[0])
