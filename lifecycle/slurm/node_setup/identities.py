"""Users and groups of the operating system, with the same numbers on every node."""

from dataclasses import dataclass
from typing import Literal

from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.node import Node
from node_setup.settings import User, UserGroup

EXPIRED = "1"
"""Expiry date in days since 1970-01-01, long past."""
EXPIRY_FIELD = 7
"""Index of the expiry date in a line of the shadow database."""
NOT_FOUND = 2
"""getent's status for a missing key."""
USER_IS_BUSY = 8
"""usermod's status for a user with running processes."""


@dataclass(frozen=True)
class Account:
    """A line of the user database."""

    name: str
    uid: int
    gid: int
    home: str


def find_user(host: Host, name: str) -> Account | None:
    """Return the user of this name from any database, or None."""
    found = _entry(host, "passwd", name)
    if found is None:
        return None
    name, _, uid, gid, _, home, *_ = found
    return Account(name, int(uid), int(gid), home)


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
    """Create the group if it is missing.

    Raises:
        SetupError: if its name or its number belongs to another group.
    """
    if not check_number(node.host, "group", group.name, group.gid):
        node.host.run("groupadd", "--gid", str(group.gid), group.name)
        node.changed(f"group {group.name} ({group.gid})")


def check_number(host: Host, kind: Literal["user", "group"], name: str, number: int) -> bool:
    """Return whether the name exists; raise SetupError if name and number do not belong together."""
    database = "passwd" if kind == "user" else "group"
    number_kind = "uid" if kind == "user" else "gid"
    named = _entry(host, database, name)
    numbered = _entry(host, database, number)
    # The first field is the name, and the third one the number, in both databases.
    if named and int(named[2]) != number:
        raise SetupError(
            f"{kind} {name} has {number_kind} {named[2]} on this node, and {number} in the cluster file",
            f"write {number_kind} {named[2]} or another name into the cluster file; a {kind}'s number cannot "
            "change, because files have it",
        )
    if numbered and numbered[0] != name:
        raise SetupError(
            f"{number_kind} {number} of {kind} {name} is {kind} {numbered[0]}'s on this node",
            f"give the {kind} another {number_kind} in the cluster file",
        )
    return named is not None


def bring_user(node: Node, user: User, gid: int, home: str) -> None:
    """Create or correct this user with its groups and allow logins; ``home.py`` creates the home."""
    host = node.host
    found = find_user(host, user.name)
    if found is None:
        host.run(
            "useradd",
            "--uid",
            str(user.uid),
            "--gid",
            str(gid),
            "--home-dir",
            home,
            "--no-create-home",
            "--shell",
            "/bin/bash",
            user.name,
        )
        node.changed(f"user {user.name} ({user.uid})")
        found = Account(user.name, user.uid, gid, home)
    if (found.gid, found.home) != (gid, home):
        found = _move(node, user, found, gid, home)
    if further_groups(host, user.name, found.gid) != set(user.groups) - {user.group}:
        # The list is complete, so that docker and sudo, which give root's rights, are not in it.
        host.run("usermod", "--groups", ",".join(user.groups), user.name)
        node.changed(
            f"user {user.name}: groups {', '.join(user.groups) or 'none'} beside {user.group}"
        )
    if is_expired(host, user.name):
        host.run("usermod", "--expiredate", "", user.name)
        node.changed(f"user {user.name}: may log in again")


def _move(node: Node, user: User, found: Account, gid: int, home: str) -> Account:
    """Change a user's primary group or home, except while processes of that user run: usermod refuses."""
    # usermod gives all files of the home to the new group, on every node, which takes hours in a large home.
    # It looks for them in the recorded home, so the record changes first.
    options = [("--home", home)]
    if found.gid != gid:
        options = [("--home", "/nonexistent"), ("--gid", str(gid)), *options]
    for option in options:
        done = node.host.try_run("usermod", *option, user.name)
        if done.status == USER_IS_BUSY:
            node.warn(
                f"user {user.name} keeps group {found.gid} and home {found.home} here, instead of {gid} and "
                f"{home}, because the user has running processes: apply the scripts again without them"
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
    """Return the user's groups without the primary one."""
    names = host.run("id", "--name", "--groups", name).split()
    primary = _entry(host, "group", gid)
    return set(names) - {primary[0] if primary else str(gid)}


def is_expired(host: Host, name: str) -> bool:
    found = _entry(host, "shadow", name)
    return bool(found and len(found) > EXPIRY_FIELD and found[EXPIRY_FIELD] == EXPIRED)


def shut_out(node: Node, name: str) -> None:
    """Lock a user, also for keys, and remove the user's groups; files and processes stay."""
    host = node.host
    found = find_user(host, name)
    if found is None:
        return
    if not is_expired(host, name):
        # The account expires too, because a locked password does not stop keys.
        host.run("usermod", "--lock", "--expiredate", EXPIRED, name)
        node.changed(f"user {name}: locked, no longer in the cluster file")
    if further_groups(host, name, found.gid):
        host.run("usermod", "--groups", "", name)
        node.changed(f"user {name}: out of all further groups")
