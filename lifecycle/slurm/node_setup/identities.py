"""Users and groups of the operating system, with the same numbers on every node."""

from collections.abc import Mapping, Sequence
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
SECONDS_TO_LOOK_UP = 300
"""Time limit of the lookup of all users. Some may be in a company's directory."""
USER_IS_BUSY = 8
"""usermod's status for a user with running processes."""


@dataclass(frozen=True)
class Account:
    """A line of the user database."""

    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True)
class Known:
    """Users and groups that the node has, of those that were looked up."""

    accounts: dict[str, Account]
    """Users by name."""
    names: dict[int, str]
    """Names of users by number."""
    gids: dict[str, int]
    """Numbers of groups by name."""
    groups: dict[int, str]
    """Names of groups by number."""
    expired: frozenset[str]
    """Users who may not log in."""
    memberships: dict[str, frozenset[str]]
    """All groups of a user, by the user's name."""

    def further_groups(self, name: str, gid: int) -> set[str]:
        """Return the user's groups without the primary one."""
        return set(self.memberships[name]) - {self.groups.get(gid, str(gid))}


def read_known(
    host: Host, users: Sequence[User], groups: Sequence[UserGroup], former: Sequence[str]
) -> Known:
    """Look up users and groups, by five programs for any number of them.

    Args:
        host: this machine.
        users: users of the cluster file.
        groups: groups of the cluster file.
        former: names of users who were removed from the file.
    """
    names = [*(user.name for user in users), *former]
    found = _entries(host, "passwd", [*names, *(str(user.uid) for user in users)])
    accounts = {
        name: Account(name, int(uid), int(gid), home) for name, _, uid, gid, _, home, *_ in found
    }
    present = [name for name in names if name in accounts]
    keys = [key for group in groups for key in (group.name, str(group.gid))]
    keys += [str(accounts[name].gid) for name in present]
    found_groups = [(name, int(gid)) for name, _, gid, *_ in _entries(host, "group", keys)]
    shadow = _entries(host, "shadow", present)
    return Known(
        accounts=accounts,
        names={account.uid: account.name for account in accounts.values()},
        gids=dict(found_groups),
        groups={gid: name for name, gid in found_groups},
        expired=frozenset(
            entry[0]
            for entry in shadow
            if len(entry) > EXPIRY_FIELD and entry[EXPIRY_FIELD] == EXPIRED
        ),
        memberships=_memberships(host, present),
    )


def _entries(host: Host, database: str, keys: Sequence[str]) -> list[list[str]]:
    """Return the lines with these names or numbers, from any source of the database."""
    if not keys:
        return []
    # All keys are given, because a company's directory may not list its users.
    done = host.try_run(
        "getent", database, *dict.fromkeys(keys), timeout_seconds=SECONDS_TO_LOOK_UP
    )
    if done.status not in (0, NOT_FOUND):
        raise SetupError(
            f"`getent {database}` ended with {done.status}: {done.said}", "see nsswitch.conf"
        )
    return [line.split(":") for line in dict.fromkeys(done.output.splitlines())]


def _memberships(host: Host, names: Sequence[str]) -> dict[str, frozenset[str]]:
    if not names:
        return {}
    # `id` of Ubuntu 20.04 takes one user only.
    output = host.run("groups", *names, timeout_seconds=SECONDS_TO_LOOK_UP)
    pairs = [line.partition(" : ") for line in output.splitlines()]
    return {name: frozenset(groups.split()) for name, _, groups in pairs}


def bring_group(node: Node, group: UserGroup, known: Known) -> None:
    """Create the group if it is missing.

    Raises:
        SetupError: if its name or its number belongs to another group.
    """
    if not _is_known("group", group.name, group.gid, known.gids.get(group.name), known.groups):
        node.host.run("groupadd", "--gid", str(group.gid), group.name)
        node.changed(f"group {group.name} ({group.gid})")


def check_user(user: User, known: Known) -> None:
    """Raise SetupError if the user's name or number belongs to another user."""
    account = known.accounts.get(user.name)
    _is_known("user", user.name, user.uid, account.uid if account else None, known.names)


def _is_known(
    kind: Literal["user", "group"],
    name: str,
    number: int,
    present: int | None,
    names: Mapping[int, str],
) -> bool:
    """Return whether the name exists; raise SetupError if name and number do not belong together.

    Args:
        kind: kind of the name.
        name: name in the cluster file.
        number: number in the cluster file.
        present: number that the name has on this node; None if there is no such name.
        names: names on this node by number.
    """
    number_kind = "uid" if kind == "user" else "gid"
    if present is not None and present != number:
        raise SetupError(
            f"{kind} {name} has {number_kind} {present} on this node, and {number} in the cluster file",
            f"write {number_kind} {present} or another name into the cluster file; a {kind}'s number cannot "
            "change, because files have it",
        )
    if names.get(number, name) != name:
        raise SetupError(
            f"{number_kind} {number} of {kind} {name} is {kind} {names[number]}'s on this node",
            f"give the {kind} another {number_kind} in the cluster file",
        )
    return present is not None


def bring_user(node: Node, user: User, gid: int, home: str, known: Known) -> None:
    """Create or correct this user with its groups and allow logins; ``home.py`` creates the home."""
    host = node.host
    found = known.accounts.get(user.name)
    present: set[str] = set()
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
    elif (found.gid, found.home) != (gid, home):
        moved = _move(node, user, found, gid, home)
        present = set(_memberships(host, [user.name])[user.name])
        present -= {user.group if moved else known.groups.get(found.gid, str(found.gid))}
    else:
        present = known.further_groups(user.name, gid)
    if present != set(user.groups) - {user.group}:
        # The list is complete, so that docker and sudo, which give root's rights, are not in it.
        host.run("usermod", "--groups", ",".join(user.groups), user.name)
        node.changed(
            f"user {user.name}: groups {', '.join(user.groups) or 'none'} beside {user.group}"
        )
    if user.name in known.expired:
        host.run("usermod", "--expiredate", "", user.name)
        node.changed(f"user {user.name}: may log in again")


def _move(node: Node, user: User, found: Account, gid: int, home: str) -> bool:
    """Change a user's primary group or home, and return whether that succeeded.

    While processes of the user run, usermod refuses, and the next run tries again.
    """
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
            return False
        if done.status != 0:
            raise SetupError(
                f"`usermod {' '.join(option)} {user.name}` ended with {done.status}: {done.said}",
                "run it by hand on the node to see more",
            )
    node.changed(f"user {user.name}: group {user.group} ({gid}), home {home}")
    return True


def shut_out(node: Node, name: str, known: Known) -> None:
    """Lock a user, also for keys, and remove the user's groups; files and processes stay."""
    host = node.host
    found = known.accounts.get(name)
    if found is None:
        return
    if name not in known.expired:
        # The account expires too, because a locked password does not stop keys.
        host.run("usermod", "--lock", "--expiredate", EXPIRED, name)
        node.changed(f"user {name}: locked, no longer in the cluster file")
    if known.further_groups(name, found.gid):
        host.run("usermod", "--groups", "", name)
        node.changed(f"user {name}: out of all further groups")
