"""Metrics that a PromQL expression selects."""

from __future__ import annotations

import re

_OPERATORS = {"and", "or", "unless", "bool", "offset", "atan2", "inf", "nan"}


def metric_names(expression: str) -> set[str]:
    """Names of its selectors: what is left without labels, ranges, groupings, functions and numbers."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    # Not followed by a parenthesis, which makes it a function, nor part of a number such as 3.6e+09.
    words = re.findall(r"(?<![\w.])[a-zA-Z_:][\w:]*\b(?!\s*\()", text)
    return {word for word in words if word.lower() not in _OPERATORS}
