"""Rules for names, numbers, keys and references of users, groups and accounts."""

import re
from collections.abc import Iterator, Sequence
from functools import partial

from config.access import FIRST_ID, LAST_ID, RESERVED_IDS, Account
from config.facts.system_names import SYSTEM_NAMES
from config.public_key import fault, is_private_key
from config.reading.violation import Violation
from config.rules.rule import SlurmRule, repetitions
from config.slurm_cluster import SlurmCluster
from config.storage import SHARED_AT_HOMES
from config.text_forms import LOWER_CASE_NAME

OWN_RANGE = (FIRST_ID, LAST_ID)
KEEP_OR_GIVE = (
    "keep the number that a directory gives, and add its range to access.id_ranges with the directory as "
    "owner; give an unused number only to somebody without files"
)
_NUM_SHOWN = 60
"""Characters of an invalid key that a message shows: enough to find it, and on one line."""


def names_are_distinct(cluster: SlurmCluster) -> Iterator[Violation]:
    access = cluster.access
    for kind, items in (
        ("groups", access.groups),
        ("users", access.users),
        ("accounts", access.accounts),
    ):
        earlier = f"an earlier item of access.{kind} has this name"
        fix = "set another name, or remove one of the two"
        yield from repetitions(
            f"access.{kind}", [item.name for item in items], earlier, fix, key=".name"
        )


def names_are_free(cluster: SlurmCluster) -> Iterator[Violation]:
    """Reserve system names for users and groups alike, because a user may have a group of the same name."""
    for kind, items in (("groups", cluster.access.groups), ("users", cluster.access.users)):
        for name in (item.name for item in items):
            if name in SYSTEM_NAMES or name.startswith("systemd-"):
                yield Violation(
                    f"access.{kind}[{name}].name",
                    name,
                    "the operating system or software on the nodes has a user or group with this name",
                    "set another name",
                )


def numbers_have_an_owner(cluster: SlurmCluster) -> Iterator[Violation]:
    """Require numbers of the file's own range or of a named one. A number near a wrong one is no remedy."""
    access = cluster.access
    for kind, key, items in (
        ("users", "uid", [(user.name, user.uid) for user in access.users]),
        ("groups", "gid", [(group.name, group.gid) for group in access.groups]),
    ):
        for name, number in items:
            wrong = partial(Violation, f"access.{kind}[{name}].{key}", number)
            ranges = [(found.first, found.last) for found in access.id_ranges]
            if number in RESERVED_IDS:
                yield wrong(f"the number belongs to {RESERVED_IDS[number]}", KEEP_OR_GIVE)
            elif not any(first <= number <= last for first, last in [OWN_RANGE, *ranges]):
                yield wrong(
                    f"numbers are {FIRST_ID} to {LAST_ID}, or in a range of access.id_ranges",
                    KEEP_OR_GIVE,
                )


def ranges_are_in_order(cluster: SlurmCluster) -> Iterator[Violation]:
    for index, found in enumerate(cluster.access.id_ranges):
        if found.last < found.first:
            yield Violation(
                f"access.id_ranges[{index}].last",
                found.last,
                f"a range ends at or after its first number, {found.first}",
                f"set the last number that {found.owner} gives out",
            )


def numbers_are_distinct(cluster: SlurmCluster) -> Iterator[Violation]:
    """Require distinct numbers, because files on a shared file system belong to numbers."""
    access = cluster.access
    users = [(user.name, user.uid) for user in access.users]
    groups = [(group.name, group.gid) for group in access.groups]
    for kind, key, items in (("user", "uid", users), ("group", "gid", groups)):
        owners: dict[int, str] = {}
        for name, number in items:
            if number in owners:
                yield Violation(
                    f"access.{kind}s[{name}].{key}",
                    number,
                    f"the {kind} {owners[number]} has this number",
                    "correct the wrong one of the two; an unused number is only for somebody without files",
                )
            owners.setdefault(number, name)


def own_groups_are_free(cluster: SlurmCluster) -> Iterator[Violation]:
    access = cluster.access
    by_number = {group.gid: group.name for group in access.groups}
    for user in access.users:
        if user.group is not None:
            continue
        if user.name in by_number.values():
            yield Violation(
                f"access.users[{user.name}].group",
                None,
                f"the user's own group would be called {user.name}, like a group in access.groups",
                f"set {user.name}, or rename that group",
            )
        elif user.uid in by_number:
            yield Violation(
                f"access.users[{user.name}].uid",
                user.uid,
                f"the user's own group would have this number too, and it belongs to the group"
                f" {by_number[user.uid]}",
                "set group, or an unused number if the user has no files yet",
            )


def groups_of_users_exist(cluster: SlurmCluster) -> Iterator[Violation]:
    missing = partial(_missing, "access.groups", [group.name for group in cluster.access.groups])
    for user in cluster.access.users:
        path = f"access.users[{user.name}]"
        yield from missing(
            f"{path}.group", user.group, "add the group, or set null for the user's own group"
        )
        for index, name in enumerate(user.groups):
            yield from missing(f"{path}.groups[{index}]", name, "add the group, or remove it here")


def accounts_exist(cluster: SlurmCluster) -> Iterator[Violation]:
    accounts = cluster.access.accounts
    missing = partial(_missing, "access.accounts", [account.name for account in accounts])
    for account in accounts:
        path = f"access.accounts[{account.name}].parent"
        yield from missing(path, account.parent, "add the account, or set null for Slurm's root")
    for user in cluster.access.users:
        path = f"access.users[{user.name}].account"
        yield from missing(path, user.account, "add the account, or set null for none")


def _missing(
    place: str, names: Sequence[str], path: str, name: str | None, fix: str
) -> Iterator[Violation]:
    """Yield a violation if the file has a name at ``path`` and not at ``place``.

    The check is skipped while a name at ``place`` has a wrong form, because the reference may be correct.
    """
    have_their_form = all(re.search(LOWER_CASE_NAME.pattern, one) for one in names)
    if name is None or name in names or not have_their_form:
        return
    there = f"{place} has {', '.join(names)}" if names else f"there are no {place}"
    yield Violation(path, name, there, fix)


def accounts_have_a_root(cluster: SlurmCluster) -> Iterator[Violation]:
    accounts = {account.name: account for account in cluster.access.accounts}
    reported: set[str] = set()
    for account in cluster.access.accounts:
        circle = _circle(account, accounts)
        if circle and account.name not in reported:
            reported.update(circle)
            above = ", which is below ".join([*circle[1:], account.name])
            yield Violation(
                f"access.accounts[{account.name}].parent",
                account.parent,
                f"accounts form a tree, and {account.name} is below {above}",
                "set another parent, or null for Slurm's root",
            )


def _circle(account: Account, accounts: dict[str, Account]) -> list[str]:
    """Return the accounts from this one upwards until it repeats; empty if it does not."""
    passed = [account.name]
    above = account.parent
    while above is not None and above in accounts and above not in passed:
        passed.append(above)
        above = accounts[above].parent
    return passed if above == account.name else []


def keys_are_public_keys(cluster: SlurmCluster) -> Iterator[Violation]:
    for user in cluster.access.users:
        for index, key in enumerate(user.ssh_keys):
            wrong = fault(key)
            if wrong:
                # A private key is named but not shown. If it were cut off, it might not be recognized.
                is_short = len(key) <= _NUM_SHOWN or is_private_key(key)
                got = key if is_short else f"{key[:_NUM_SHOWN]}..."
                path = f"access.users[{user.name}].ssh_keys[{index}]"
                yield Violation(path, got, wrong.allowed, wrong.fix)


RULES = (
    # Linux finds users and groups by name, and Slurm accounts: a second one would change the first.
    names_are_distinct,
    names_are_free,
    # Slurm's own account, which cannot be created or given a parent (sacctmgr manual).
    SlurmRule(
        "access.accounts[root].name",
        lambda cluster: any(account.name == "root" for account in cluster.access.accounts),
        "Slurm already has this account as its root",
        "set another name",
        got="root",
    ),
    # Their home would be the directory of code and images.
    SlurmRule(
        "access.users[shared].name",
        lambda cluster: (
            cluster.storage.lustre is None
            and any(user.name == "shared" for user in cluster.access.users)
        ),
        f"with lustre: none, {SHARED_AT_HOMES} has code and images",
        "set another name",
        got="shared",
    ),
    numbers_have_an_owner,
    # An empty range would admit no number, and its mistake would show as wrong numbers of people.
    ranges_are_in_order,
    numbers_are_distinct,
    # useradd creates a group with the user's name and number, and fails if one of them is taken.
    own_groups_are_free,
    # useradd fails on the nodes if a group is missing, after the deployment.
    groups_of_users_exist,
    # sacctmgr refuses a user or an account whose parent is missing, after the deployment.
    accounts_exist,
    # Slurm's hierarchy of accounts has one root, and shares are computed from there.
    accounts_have_a_root,
    # sshd ignores a malformed line silently, and a private key must not be uploaded to S3.
    keys_are_public_keys,
)
