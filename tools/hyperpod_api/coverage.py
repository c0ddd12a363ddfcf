"""Members of SageMaker's requests, and how a cluster file, a command or this project sets each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tools.hyperpod_api.members import Member

WHOLE = ""
"""Path of the entry for a whole request, with all its members."""


class Way(StrEnum):
    """Origin of a member's value."""

    FIELD = "field"
    """A field of the cluster file."""
    COMMAND = "command"
    """A command of this project."""
    FIXED = "fixed"
    """A value that the project chooses."""
    LEFT_OUT = "left out"
    """No value; the service applies its default."""


@dataclass(frozen=True)
class Entry:
    way: Way
    text: str
    """Field, command, value or reason."""
    covers_members: bool = False
    """Whether the entry also covers the members of the structure."""


Entries = Mapping[str, Entry]
"""Entries of one request, by the member's path."""


def field(name: str) -> Entry:
    """Return the entry of a member that a field of the cluster file sets, such as ``network.cidr``."""
    return Entry(Way.FIELD, name)


def whole_field(name: str) -> Entry:
    """Return the entry of a structure, with all its members, whose form a field of the cluster file has."""
    return Entry(Way.FIELD, name, covers_members=True)


def command(text: str) -> Entry:
    """Return the entry of a member, or a whole request, that a command of this project sends."""
    return Entry(Way.COMMAND, text, covers_members=True)


def fixed(value: str) -> Entry:
    return Entry(Way.FIXED, value)


def left_out(reason: str) -> Entry:
    """Return the entry of a member, with everything below it, that cannot be set."""
    return Entry(Way.LEFT_OUT, reason, covers_members=True)


def covering_path(member: Member, entries: Entries) -> str | None:
    """Return the path of the entry that covers a member, or None."""
    if member.path in entries:
        return member.path
    for path, entry in entries.items():
        is_above = path == WHOLE or member.path.startswith((f"{path}.", f"{path}[]."))
        if entry.covers_members and is_above:
            return path
    return None


@dataclass(frozen=True)
class Differences:
    """Differences between a request of the service and its entries."""

    without_entry: tuple[str, ...]
    """Members that no entry covers."""
    without_member: tuple[str, ...]
    """Entries that cover no member."""


def differences(members: Sequence[Member], own: Entries, inherited: Entries) -> Differences:
    """Compare the members of a request with its entries.

    Args:
        members: members of the request.
        own: entries of this request; each must cover a member.
        inherited: entries of the request that creates the same thing, for members without their own.
    """
    found = [(member, covering_path(member, own)) for member in members]
    used = {path for _, path in found if path is not None}
    # An entry for a whole request also covers one without parameters.
    used |= {WHOLE} & own.keys()
    return Differences(
        tuple(
            member.path
            for member, path in found
            if path is None and covering_path(member, inherited) is None
        ),
        tuple(path for path in own if path not in used),
    )
