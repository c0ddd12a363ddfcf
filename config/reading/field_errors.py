"""Violations from pydantic's errors about single values."""

import difflib
import re
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from config.cluster_kinds import KINDS
from config.reading import places
from config.reading.violation import Violation, shown
from config.section import Section
from config.text_forms import FORMS

# YAML 1.1 read these words as booleans, and many people still write them.
_SWITCHES = {"on": "true", "yes": "true", "y": "true", "off": "false", "no": "false", "n": "false"}

# Allowed value and fix by pydantic's error type; {...} is a limit from the error's context.
_WANTED = {
    "bool_type": ("true or false is allowed", "set true or false"),
    "dict_type": ("a mapping is allowed", "set keys and values below it"),
    "greater_than_equal": ("{ge} or more is allowed", "set {ge}"),
    "int_type": ("a whole number is allowed", "set digits without quotes or a decimal point"),
    "less_than_equal": ("{le} or less is allowed", "set {le}"),
    "list_type": ("a list is allowed", "write it as [one, other], or with a dash before each item"),
    "model_attributes_type": ("a mapping is allowed", "set keys and values below it"),
    "model_type": ("a mapping is allowed", "set keys and values below it"),
    "string_type": ("a text is allowed", "set a text, in quotes if YAML reads it as another type"),
    "string_too_long": ("{max_length} or fewer characters are allowed", "shorten it"),
    "too_long": ("{max_length} or fewer items are allowed", "remove some"),
    "too_short": ("{min_length} or more items are allowed", "add some"),
}


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
    return Violation(places.path_of(location, document), got, *_allowed_and_fix(details, location, got, kind))


def _allowed_and_fix(
    details: ErrorDetails, location: places.Location, got: object, kind: type[Section]
) -> tuple[str, str]:
    context = details.get("ctx", {})
    match details["type"]:
        case "missing" if location == ("scheduler",):
            return "it is required", f"add scheduler: {', or scheduler: '.join(KINDS)}"
        case "literal_error" if location == ("scheduler",):
            return _choice(got, " or ".join(map(repr, KINDS)))
        case "missing":
            return "it is required", f"add {location[-1]}"
        case "extra_forbidden":
            return _no_such_key(details, kind)
        case "literal_error":
            return _choice(got, context["expected"])
        case "union_tag_invalid":
            return _choice(got, context["expected_tags"])
        case "union_tag_not_found":
            return "it is required", "add vpc: new, or vpc: existing"
        case "string_pattern_mismatch":
            form = FORMS[context["pattern"]]
            return form.meaning, f"set it in this form, for example {form.examples[0]}"
        case "bool_type" if isinstance(got, str) and got.lower() in _SWITCHES:
            return "true or false is allowed", f"set {_SWITCHES[got.lower()]}"
        case "int_type" if isinstance(got, str | float) and re.fullmatch(r"\d{1,18}(\.0*)?", str(got)):
            return "a whole number is allowed", f"set {int(float(got))}"
        case "string_type" if isinstance(got, bool | int):
            return "a text is allowed", f'set "{shown(got)}"'
        case other if other in _WANTED:
            allowed, fix = _WANTED[other]
            return allowed.format(**context), fix.format(**context)
        case _:
            return details["msg"], "set another value"


def _no_such_key(details: ErrorDetails, kind: type[Section]) -> tuple[str, str]:
    schedulers = places.other_schedulers(details, kind)
    if schedulers:
        return f"it is for scheduler: {' or '.join(schedulers)}", "remove it"
    meant = places.key_meant(details, kind)
    other = places.other_network(details)
    if other:
        fix = f"set network.vpc to {other}, or remove it"
    elif meant:
        fix = f"set {meant}"
    else:
        fix = f"remove it, or set one of {', '.join(places.keys_at(details['loc'][:-1], kind))}"
    return "there is no such key", fix


def _choice(got: object, expected: str) -> tuple[str, str]:
    """Return what is allowed and the fix, from pydantic's list of expected values: ``'one', 'two' or 3``."""
    names = [shown(text) if text else number for text, number in re.findall(r"'([^']*)'|(\d+)", expected)]
    near = []
    if isinstance(got, str):
        by_lower = {name.lower(): name for name in names}
        near = [by_lower[name] for name in difflib.get_close_matches(got.lower(), by_lower, n=1)]
    if isinstance(got, float) and shown(str(got)) in names:  # a version, which YAML reads as a number
        near = [shown(str(got))]
    if isinstance(got, int) and names[0].isdigit():
        near = [min(names, key=lambda name: abs(int(name) - got))]
    allowed = f"one of {', '.join(names)}" if len(names) > 1 else names[0]
    return f"{allowed} is allowed", f"set {near[0]}" if near else "set one of these"
