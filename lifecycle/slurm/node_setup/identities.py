"""Users and groups of the operating system, with numbers that are the same on every node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.node import Node
from node_setup.settings import User, UserGroup

EXPIRED = "1"
"""A day after 1970-01-01, in days: long over. What getent shows of such an account in its eighth field."""
NOT_FOUND = 2
"""getent's status for a key that is not there."""

USER_IS_BUSY = 8
"""usermod's status for a user who has processes."""


@dataclass(frozen=True)
class Account:
    """A line of the user database."""

    name: str
    uid: int
    gid: int
    home: str


def find_user(host: Host, name: str) -> Account | None:
    """The user of this name, whichever database has it."""
    found = _entry(host, "passwd", name)
    return Account(found[0], int(found[2]), int(found[3]), found[5]) if found else None


def _entry(host: Host, database: str, key: str | int) -> list[str] | None:
    done = host.try_run("getent", database, str(key))
    if done.status == NOT_FOUND:
        return None
    if done.status != 0:
        raise SetupError(
            f"`getent {database} {key}` ended with {done.status}: {done.said}", "see nsswitch.conf"
        )
    return done.output.splitlines()[0].split(":")


def bring_group(node: Node, group: UserGroup) -> None:
    """Have this group.

    Raises:
        SetupError: if its name or its number is another group's.
    """
    if not _check_number(node.host, "group", group.name, group.gid):
        node.host.run("groupadd", "--gid", str(group.gid), group.name)
        node.changed(f"group {group.name} ({group.gid})")


def check_user(host: Host, user: User) -> None:
    """Raise SetupError if the user's name or number is another user's on this node."""
    _check_number(host, "user", user.name, user.uid)


def _check_number(host: Host, kind: Literal["user", "group"], name: str, number: int) -> bool:
    """Whether the name is there; SetupError if it or its number belongs to another user or group."""
    database, number_kind = ("passwd", "uid") if kind == "user" else ("group", "gid")
    named, numbered = _entry(host, database, name), _entry(host, database, number)
    if named and int(named[2]) != number:
        raise SetupError(
            f"{kind} {name} has {number_kind} {named[2]} on this node, and {number} in the cluster file",
            f"write {number_kind} {named[2]} or another name into the cluster file; a {kind}'s number cannot "
            "change, since files have it",
        )
    if numbered and numbered[0] != name:
        raise SetupError(
            f"{number_kind} {number} of {kind} {name} is {kind} {numbered[0]}'s on this node",
            f"give the {kind} another {number_kind} in the cluster file",
        )
    return named is not None


def bring_user(node: Node, user: User, gid: int, home: str) -> None:
    """Have this user with these groups, able to log in; the home itself is made elsewhere."""
    host = node.host
    found = find_user(host, user.name)
    if found is None:
        host.run(
            *("useradd", "--uid", str(user.uid), "--gid", str(gid), "--home-dir", home),
            *("--no-create-home", "--shell", "/bin/bash", user.name),
        )
        node.changed(f"user {user.name} ({user.uid})")
        found = Account(user.name, user.uid, gid, home)
    if (found.gid, found.home) != (gid, home):
        found = _move(node, user, found, gid, home)
    if further_groups(host, user.name, found.gid) != set(user.groups) - {user.group}:
        # All of them, so that docker and sudo, which are root, are not among them.
        host.run("usermod", "--groups", ",".join(user.groups), user.name)
        node.changed(f"user {user.name}: groups {', '.join(user.groups) or 'none'} beside {user.group}")
    if is_expired(host, user.name):
        host.run("usermod", "--expiredate", "", user.name)
        node.changed(f"user {user.name}: may log in again")


def _move(node: Node, user: User, found: Account, gid: int, home: str) -> Account:
    """Give a user another primary group or home; not while processes of his run here, as usermod refuses."""
    # usermod gives all files of the home to the new group, on every node, which takes hours in a large one.
    # It looks for them in the home that it knows.
    group = [("--home", "/nonexistent"), ("--gid", str(gid))] if found.gid != gid else []
    for option in (*group, ("--home", home)):
        done = node.host.try_run("usermod", *option, user.name)
        if done.status == USER_IS_BUSY:
            node.warn(
                f"user {user.name} keeps group {found.gid} and home {found.home} here, instead of {gid} and "
                f"{home}, while processes of his run: apply the scripts again when there are none"
            )
            return found
        if done.status != 0:
            raise SetupError(
                f"`usermod {' '.join(option)} {user.name}` ended with {done.status}: {done.said}",
                "run it by hand on the node to see more",
            )
    node.changed(f"user {user.name}: group {user.group} ({gid}), home {home}")
    return Account(user.name, user.uid, gid, home)


def further_groups(host: Host, name: str, gid: int) -> set[str]:
    """The user's groups beside the primary one."""
    names = host.run("id", "--name", "--groups", name).split()
    primary = _entry(host, "group", gid)
    return set(names) - {primary[0] if primary else str(gid)}


def is_expired(host: Host, name: str) -> bool:
    found = _entry(host, "shadow", name)
    return bool(found and len(found) > 7 and found[7] == EXPIRED)


def shut_out(node: Node, name: str) -> None:
    """Keep a user from logging in, by key too, and from what groups allow; all that he has stays."""
    host = node.host
    found = find_user(host, name)
    if found is None:
        return
    if not is_expired(host, name):
        # Not only locked: a locked password does not keep a key out.
        host.run("usermod", "--lock", "--expiredate", EXPIRED, name)
        node.changed(f"user {name}: locked, no longer in the cluster file")
    if further_groups(host, name, found.gid):
        host.run("usermod", "--groups", "", name)
        node.changed(f"user {name}: out of all further groups")
