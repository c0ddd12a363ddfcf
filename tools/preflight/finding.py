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


@dataclass(frozen=True)
class Subject:
    """Subject of findings, such as a stack or a quota."""

    name: str

    def ok(self, message: str) -> Finding:
        return Finding("OK", self.name, message)

    def warn(self, message: str, action: str) -> Finding:
        return Finding("WARN", self.name, message, action)

    def unknown(self, reason: str, action: str) -> Finding:
        return Finding(
            "UNKNOWN", self.name, f"could not be checked{': ' if reason else ''}{reason}", action
        )

    def fail(self, message: str, action: str) -> Finding:
        return Finding("FAIL", self.name, message, action)
