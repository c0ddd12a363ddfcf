"""Violations from pydantic's errors about single values."""

import difflib
import re
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from config.cluster_kinds import KINDS
from config.reading import places
from config.reading.violation import Violation, shown
from config.section import Section
from config.text_forms import FORMS, PUBLIC_CIDR, Form

# YAML 1.1 read these words as booleans, and many people still write them.
_SWITCHES = {"on": "true", "yes": "true", "y": "true", "off": "false", "no": "false", "n": "false"}


class _Advice(NamedTuple):
    """Allowed values and fix of a violation."""

    allowed: str
    fix: str


# By pydantic's error type; {...} is a limit from the error's context.
_ADVICE = {
    "bool_type": _Advice("true or false is allowed", "set true or false"),
    "dict_type": _Advice("a mapping is allowed", "set keys and values below it"),
    "greater_than_equal": _Advice("{ge} or more is allowed", "set {ge}"),
    "int_type": _Advice(
        "a whole number is allowed", "set digits without quotes or a decimal point"
    ),
    "less_than_equal": _Advice("{le} or less is allowed", "set {le}"),
    "list_type": _Advice(
        "a list is allowed", "write it as [one, other], or with a dash before each item"
    ),
    "model_attributes_type": _Advice("a mapping is allowed", "set keys and values below it"),
    "model_type": _Advice("a mapping is allowed", "set keys and values below it"),
    "string_type": _Advice(
        "a text is allowed", "set a text, in quotes if YAML reads it as another type"
    ),
    "string_too_long": _Advice("{max_length} or fewer characters are allowed", "shorten it"),
    "too_short": _Advice("{min_length} or more items are allowed", "add some"),
}
_REQUIRED = "it is required"


class _Limit(NamedTuple):
    """Limit of a list that a growing site meets."""

    reason: str
    """Service that sets it."""
    instead: str
    """Fix beside the removal of items."""


_LIMITS = {
    "instance_groups": _Limit(
        "CreateCluster of SageMaker accepts no more",
        "merge groups of one type, or create a second cluster from another cluster file",
    ),
    "studio.profiles": _Limit(
        "their user ids fill the 4 KB of environment variables that AWS Lambda accepts",
        "add these people in the console (docs/studio.md, More people)",
    ),
}
"""Limits by the place of the list."""


def field_violations(
    error: ValidationError, document: dict[str, Any], kind: type[Section]
) -> list[Violation]:
    """Return a violation per value that this kind of file rejects; ``document`` names the groups."""
    all_details = error.errors(include_url=False)
    meant = {
        (*details["loc"][:-1], places.key_meant(details, kind))
        for details in all_details
        if details["type"] == "extra_forbidden"
    }
    # A key that is missing because it is mistyped is reported once.
    return [
        _violation(details, document, kind)
        for details in all_details
        if details["type"] != "missing" or details["loc"] not in meant
    ]


def _violation(details: ErrorDetails, document: dict[str, Any], kind: type[Section]) -> Violation:
    location = places.in_document(details)
    got = details["input"]
    if details["type"] == "missing":
        got = None
    elif details["type"].startswith("union_tag"):
        got = places.below(document, location)
    elif details["type"] == "too_long":
        return _too_long(details, places.path_of(location, document))
    advice = _advice(details, location, got, kind)
    return Violation(places.path_of(location, document), got, advice.allowed, advice.fix)


def _too_long(details: ErrorDetails, path: str) -> Violation:
    context = details["ctx"]
    most = context["max_length"]
    surplus = context["actual_length"] - most
    allowed = f"{most} or fewer items are allowed"
    fix = f"remove {surplus}"
    if path in _LIMITS:
        limit = _LIMITS[path]
        allowed += f", because {limit.reason}"
        fix += f", and {limit.instead}"
    return Violation(path, f"{context['actual_length']} items", allowed, fix)


def _advice(
    details: ErrorDetails, location: places.Location, got: object, kind: type[Section]
) -> _Advice:
    context = details.get("ctx", {})
    match details["type"]:
        case "missing" if location == ("scheduler",):
            return _Advice(_REQUIRED, f"add scheduler: {', or scheduler: '.join(KINDS)}")
        case "literal_error" if location == ("scheduler",):
            return _choice(got, " or ".join(map(repr, KINDS)))
        case "missing":
            return _Advice(_REQUIRED, f"add {location[-1]}")
        case "extra_forbidden":
            return _no_such_key(details, kind)
        case "literal_error":
            return _choice(got, context["expected"])
        case "union_tag_invalid":
            return _choice(got, context["expected_tags"])
        case "union_tag_not_found":
            return _Advice(_REQUIRED, "add vpc: new, or vpc: existing")
        case "string_pattern_mismatch":
            return _in_form(got, FORMS[context["pattern"]])
        case "bool_type" if isinstance(got, str) and got.lower() in _SWITCHES:
            return _Advice(_ADVICE["bool_type"].allowed, f"set {_SWITCHES[got.lower()]}")
        case "int_type" if isinstance(got, str | float) and re.fullmatch(
            r"\d{1,18}(\.0*)?", str(got)
        ):
            return _Advice(_ADVICE["int_type"].allowed, f"set {int(float(got))}")
        case "string_type" if isinstance(got, bool | int):
            return _Advice(_ADVICE["string_type"].allowed, f'set "{shown(got)}"')
        case other if other in _ADVICE:
            allowed, fix = _ADVICE[other]
            return _Advice(allowed.format(**context), fix.format(**context))
        case _:
            return _Advice(details["msg"], "set another value")


def _in_form(got: object, form: Form) -> _Advice:
    """Return the advice for a text that has another form."""
    bare = str(got).strip()
    if bare != got and re.search(form.pattern, bare):
        return _Advice(form.meaning, f"set {shown(bare)}, without the white space around it")
    if form is PUBLIC_CIDR and re.fullmatch(r"(\d{1,3}\.){3}\d{1,3}", bare):
        return _Advice(form.meaning, f"set {bare}/32 for this address alone")
    return _Advice(form.meaning, f"set it in this form, for example {shown(form.examples[0])}")


def _no_such_key(details: ErrorDetails, kind: type[Section]) -> _Advice:
    schedulers = places.other_schedulers(details, kind)
    if schedulers:
        return _Advice(f"it is for scheduler: {' or '.join(schedulers)}", "remove it")
    meant = places.key_meant(details, kind)
    other = places.other_network(details)
    if other:
        fix = f"set network.vpc to {other}, or remove it"
    elif meant:
        fix = f"set {meant}"
    else:
        fix = f"remove it, or set one of {', '.join(places.keys_at(details['loc'][:-1], kind))}"
    return _Advice("there is no such key", fix)


def _choice(got: object, expected: str) -> _Advice:
    """Return the advice for one of several values, from pydantic's list of them: ``'one', 'two' or 3``."""
    names = [
        shown(text) if text else number for text, number in re.findall(r"'([^']*)'|(\d+)", expected)
    ]
    near = []
    if isinstance(got, str):
        by_lower = {name.lower(): name for name in names}
        near = [by_lower[name] for name in difflib.get_close_matches(got.lower(), by_lower, n=1)]
    # YAML reads a version without quotes as a number.
    if isinstance(got, float) and shown(str(got)) in names:
        near = [shown(str(got))]
    if isinstance(got, int) and names[0].isdigit():
        near = [min(names, key=lambda name: abs(int(name) - got))]
    allowed = f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    fix = f"set {near[0]}" if near else "set one of these"
    return _Advice(f"{allowed} is allowed", fix)
