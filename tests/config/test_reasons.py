"""Each rule says why it exists, and each bound is AWS's own or has a reason."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import botocore.session
import pytest
from annotated_types import Ge, Le, MaxLen, MinLen

import config
from config.section import Section
from tests.config.bounds import AWS_BOUNDS, REASONS

RULES = Path(__file__).parents[2] / "config" / "rules"
FEWEST_WORDS = 6
"""Words of a reason. A shorter one cannot name a limit and its source, or a cause and its effect."""
LARGEST_COPY = 0.7
"""Largest share of a reason's words that are also in the rule's own message, which gives no reason."""


class StatedRule(NamedTuple):
    place: str
    reason: str
    """Comment above the rule, or docstring of its function."""
    message: str
    """Texts of the rule."""


def stated_rules() -> Iterator[StatedRule]:
    """Yield the items of every tuple ``RULES`` in the modules of rules."""
    for path in sorted(RULES.glob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        lines = text.splitlines()
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        for node in tree.body:
            if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RULES"):
                continue
            assert isinstance(node.value, ast.Tuple | ast.Call), path
            items = node.value.elts if isinstance(node.value, ast.Tuple) else []
            for item in items:
                if isinstance(item, ast.Name):
                    function = functions[item.id]
                    reason = ast.get_docstring(function) or ""
                    reason += _comment_above(lines, item.lineno)
                    message = _texts(function)
                else:
                    reason = _comment_above(lines, item.lineno)
                    message = _texts(item)
                yield StatedRule(f"{path.name}:{item.lineno}", reason, message)


def _comment_above(lines: list[str], number: int) -> str:
    """Return the comment that ends on the line before a line."""
    words: list[str] = []
    for line in reversed(lines[: number - 1]):
        if not line.strip().startswith("#"):
            break
        words.insert(0, line.strip(" #"))
    return " ".join(words)


def _texts(node: ast.AST) -> str:
    docstring = ast.get_docstring(node, clean=False) if isinstance(node, ast.FunctionDef) else None
    return " ".join(
        found.value
        for found in ast.walk(node)
        if isinstance(found, ast.Constant)
        and isinstance(found.value, str)
        and found.value != docstring
    )


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


RULES_WITH_TEXT = list(stated_rules())


def test_the_rules_are_found() -> None:
    assert len(RULES_WITH_TEXT) > 100


@pytest.mark.parametrize("rule", RULES_WITH_TEXT, ids=[rule.place for rule in RULES_WITH_TEXT])
def test_each_rule_has_a_reason_that_is_not_its_message(rule: StatedRule) -> None:
    words = _words(rule.reason)
    assert len(words) >= FEWEST_WORDS, f"{rule.place}: name AWS's limit, or the technical reason"
    known = set(_words(rule.message))
    copied = sum(word in known for word in words) / len(words)
    assert copied <= LARGEST_COPY, f"{rule.place}: the reason repeats the message"


class Bounds(NamedTuple):
    low: float | None
    high: float | None


def bounds_of_fields() -> dict[str, Bounds]:
    """Return the bounds of numbers, texts and lists of all sections, by class and field."""
    for module in pkgutil.walk_packages(config.__path__, "config."):
        importlib.import_module(module.name)
    found: dict[str, Bounds] = {}
    waiting = list(Section.__subclasses__())
    while waiting:
        section = waiting.pop()
        waiting += section.__subclasses__()
        for name, field in section.model_fields.items():
            limits = list(_limits(field.metadata)) + list(_limits_of_type(field.annotation))
            # A field that a class inherits is listed at the class that defines it.
            if limits and name in section.__annotations__:
                found[f"{section.__name__}.{name}"] = Bounds(
                    next((value for kind, value in limits if kind == "low"), None),
                    next((value for kind, value in limits if kind == "high"), None),
                )
    return found


def _limits(metadata: list[Any]) -> Iterator[tuple[str, float]]:
    for limit in metadata:
        if isinstance(limit, Ge):
            yield "low", limit.ge
        elif isinstance(limit, Le):
            yield "high", limit.le
        elif isinstance(limit, MinLen):
            yield "low", limit.min_length
        elif isinstance(limit, MaxLen):
            yield "high", limit.max_length
        elif hasattr(limit, "metadata"):
            yield from _limits(list(limit.metadata))
        elif getattr(limit, "max_length", None) is not None:
            yield "high", limit.max_length


def _limits_of_type(annotation: Any) -> Iterator[tuple[str, float]]:
    """Yield limits inside ``Annotated[...] | None``."""
    for part in getattr(annotation, "__args__", ()):
        if hasattr(part, "__metadata__"):
            yield from _limits(list(part.__metadata__))


BOUNDS = bounds_of_fields()


def test_each_bound_is_in_one_of_the_tables() -> None:
    assert set(AWS_BOUNDS).isdisjoint(REASONS)
    assert set(BOUNDS) == {*AWS_BOUNDS, *REASONS}


@cache
def api_shape(service: str, shape: str) -> dict[str, Any]:
    model = botocore.session.get_session().get_service_model(service)
    return dict(model.shape_for(shape).metadata)


@pytest.mark.parametrize("name", AWS_BOUNDS)
def test_aws_accepts_no_more_and_no_less(name: str) -> None:
    """An own bound that is narrower than AWS's is a rule of ours, and has a reason instead."""
    limit = api_shape(*AWS_BOUNDS[name])
    low, high = BOUNDS[name]
    assert high == limit["max"]
    # A form's pattern decides how short a text may be, and our lists and numbers may exclude zero.
    least = limit.get("min", 0)
    assert low is None or low in (least, least + 1)


@pytest.mark.parametrize("name", REASONS)
def test_other_bounds_have_a_reason(name: str) -> None:
    assert len(_words(REASONS[name])) >= FEWEST_WORDS
