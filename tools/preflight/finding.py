"""Finding of a check, with the action to take."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["OK", "WARN", "UNKNOWN", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    * FAIL: the deployment would fail, or bill for something that cannot work.
    * WARN: the deployment may fail.
    * UNKNOWN: the check could not be made.
    """

    level: Level
    subject: str
    message: str
    action: str = ""
    """Action to take; empty if none is needed."""


def ok(subject: str, message: str) -> Finding:
    return Finding("OK", subject, message)


def warn(subject: str, message: str, action: str) -> Finding:
    return Finding("WARN", subject, message, action)


def unknown(subject: str, reason: str, action: str) -> Finding:
    return Finding("UNKNOWN", subject, f"could not be checked{': ' if reason else ''}{reason}", action)


def fail(subject: str, message: str, action: str) -> Finding:
    return Finding("FAIL", subject, message, action)
