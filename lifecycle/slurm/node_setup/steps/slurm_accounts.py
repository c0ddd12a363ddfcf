"""Create Slurm's accounts and users from the cluster file, on the primary controller.

Accounts and users that the file never named are not changed. A user who is removed from the file can no
longer submit jobs; the records of past jobs stay.
"""

import json
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import NamedTuple

from node_setup.failure import SetupError
from node_setup.limits import ACCOUNT_COLUMNS, Limits, changes, of_all, qos_list, shown_limits
from node_setup.node import Node
from node_setup.settings import Account, User
from node_setup.slurm import configuration
from node_setup.steps.slurm_qos import bring_limits, read_record, write_record

RECORD = "/var/lib/node-setup/slurm_accounts.json"
"""Account of each user after the last run, with which removed users are found."""
LIMITS_RECORD = "/var/lib/node-setup/slurm_limits.json"
"""Names of the limits that the last run set, by account."""
NO_ADMIN = "None"
"""Administrator's level of a user without rights."""
REMEDY = "see `sacctmgr show assoc` and the log of slurmdbd on the controller"


class KnownAccount(NamedTuple):
    """Account as sacctmgr shows it."""

    parent: str
    fairshare: str


class UserSettings(NamedTuple):
    """Settings of a user as sacctmgr shows them."""

    default_account: str
    admin_level: str


@dataclass(frozen=True)
class Known:
    """Accounts and users of this cluster in Slurm's database, by name."""

    accounts: dict[str, KnownAccount]
    limits: dict[str, Limits]
    """Own limits and QOS of each account, without those of its parents."""
    users: dict[str, set[str]]
    """Accounts of each user."""
    user_settings: dict[str, UserSettings]


def apply(node: Node) -> None:
    """Adjust accounts and users to the cluster file, on the primary controller only.

    Raises:
        SetupError: if sacctmgr refuses, or shows something else afterwards.
    """
    if not node.facts.is_primary_controller:
        return
    config = configuration(node.host)
    cluster = config.get("ClusterName", "").lower()
    known = _known(node, cluster)
    accounts = {account.name: account for account in node.settings.accounts}
    parents = {name: {account.parent} & set(accounts) for name, account in accounts.items()}
    # Parents come first; the cluster file has no circles (config/rules/access.py).
    for name in TopologicalSorter(parents).static_order():
        _bring_account(node, cluster, accounts[str(name)], known)
    _bring_account_limits(node, cluster, known)
    users = {user.name: user for user in node.settings.users if user.account}
    for user in users.values():
        _bring_user(node, cluster, user, known)
    _remove_old(node, cluster, users)
    _verify(node, cluster, users)
    _warn_of_enforcement(node, config)


def _known(node: Node, cluster: str) -> Known:
    accounts: dict[str, KnownAccount] = {}
    users: dict[str, set[str]] = {}
    limits: dict[str, Limits] = {}
    columns = ",".join(("account", "user", "parentname", "share", *ACCOUNT_COLUMNS))
    rows = _show(node, "assoc", "where", f"cluster={cluster}", "woplimits", f"format={columns}")
    for account, user, parent, share, *rest in rows:
        if user:
            users.setdefault(user, set()).add(account)
        else:
            accounts[account] = KnownAccount(parent, share)
            limits[account] = shown_limits(dict(zip(ACCOUNT_COLUMNS, rest, strict=True)))
    shown = _show(node, "user", "format=user,defaultaccount,adminlevel")
    user_settings = {user: UserSettings(default, level) for user, default, level in shown}
    return Known(accounts, limits, users, user_settings)


def _show(node: Node, *what: str) -> list[list[str]]:
    shown = node.host.run("sacctmgr", "--parsable2", "--noheader", "show", *what, remedy=REMEDY)
    return [line.split("|") for line in shown.splitlines() if line]


def _change(node: Node, *what: str) -> None:
    node.host.run("sacctmgr", "--immediate", *what, remedy=REMEDY)
    node.changed(f"sacctmgr {' '.join(what)}")


def _bring_account(node: Node, cluster: str, account: Account, known: Known) -> None:
    parent = account.parent or "root"
    share = str(account.fairshare)
    here = (f"name={account.name}", f"cluster={cluster}")
    if account.name not in known.accounts:
        text = (f"description={account.name}", "organization=cluster-file")
        _change(node, "add", "account", *here, f"parent={parent}", f"fairshare={share}", *text)
        return
    existing = known.accounts[account.name]
    if existing.parent != parent:
        _change(node, "modify", "account", "where", *here, "set", f"parent={parent}")
    if existing.fairshare != share:
        _change(node, "modify", "account", "where", *here, "set", f"fairshare={share}")


def _bring_account_limits(node: Node, cluster: str, known: Known) -> None:
    """Set limits and QOS, and remove those that only an earlier run set; others stay."""
    before = read_record(node, LIMITS_RECORD)
    record = {}
    for account in node.settings.accounts:
        wanted = of_all(account)
        if account.qos:
            wanted["qos"] = qos_list(account.qos)
        if account.default_qos:
            wanted["defaultqos"] = account.default_qos
        shown = known.limits.get(account.name, {})
        bring_limits(
            node,
            ("account", "where", f"name={account.name}", f"cluster={cluster}"),
            changes(wanted, shown, before.get(account.name, [])),
        )
        if wanted:
            record[account.name] = sorted(wanted)
    write_record(node, LIMITS_RECORD, record)


def _bring_user(node: Node, cluster: str, user: User, known: Known) -> None:
    assert user.account
    if user.account not in known.users.get(user.name, set()):
        _change(
            node,
            "add",
            "user",
            f"name={user.name}",
            f"account={user.account}",
            f"cluster={cluster}",
        )
    existing = known.user_settings.get(user.name, UserSettings(user.account, NO_ADMIN))
    where = ("modify", "user", "where", f"name={user.name}")
    if existing.default_account != user.account:
        _change(node, *where, f"cluster={cluster}", "set", f"defaultaccount={user.account}")
    wanted = "Administrator" if user.admin else NO_ADMIN
    if existing.admin_level != wanted:
        _change(node, *where, "set", f"adminlevel={wanted}")


def _remove_old(node: Node, cluster: str, users: dict[str, User]) -> None:
    """Remove removed users, and users with a new account, from the accounts that this step gave them."""
    path = node.host.path(RECORD)
    before: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    record = {name: user.account for name, user in users.items()}
    known = _known(node, cluster)
    for name, account in before.items():
        if name in users and users[name].account == account:
            continue
        gone = known.users.get(name, set())
        if name in users:
            gone = gone & {account}
        existing = known.user_settings.get(name, UserSettings("", NO_ADMIN))
        if name not in users and existing.admin_level != NO_ADMIN:
            _change(
                node, "modify", "user", "where", f"name={name}", "set", f"adminlevel={NO_ADMIN}"
            )
        if not _remove(node, cluster, name, gone, existing.default_account):
            # The next run tries again.
            record.setdefault(name, account)
    node.host.write_text(RECORD, json.dumps(record, indent=2, sort_keys=True) + "\n", mode=0o600)


def _remove(node: Node, cluster: str, name: str, accounts: set[str], default: str) -> bool:
    """Remove a user from accounts, and return False if Slurm refuses because the user has jobs there."""
    # The default account is the last one: Slurm refuses to leave a user without a default.
    for account in sorted(accounts, key=lambda account: (account == default, account)):
        what = (
            "remove",
            "user",
            "where",
            f"name={name}",
            f"account={account}",
            f"cluster={cluster}",
        )
        done = node.host.try_run("sacctmgr", "--immediate", *what)
        if done.status != 0 and "active" in done.output + done.errors:
            node.warn(
                f"user {name} is no longer in account {account} of the cluster file, and keeps it while the "
                f"user's jobs run or wait: `sudo scancel --user={name}`, then apply the scripts again"
            )
            return False
        if done.status != 0:
            raise SetupError(
                f"`sacctmgr {' '.join(what)}` ended with {done.status}: {done.said}", REMEDY
            )
        node.changed(f"sacctmgr {' '.join(what)}")
    return True


def _verify(node: Node, cluster: str, users: dict[str, User]) -> None:
    known = _known(node, cluster)
    for account in node.settings.accounts:
        wanted = KnownAccount(account.parent or "root", str(account.fairshare))
        if known.accounts.get(account.name) != wanted:
            got = known.accounts.get(account.name)
            raise SetupError(
                f"account {account.name}: expected parent and fairshare {_text(wanted)}, got {_text(got)}",
                REMEDY,
            )
    for user in users.values():
        if user.account not in known.users.get(user.name, set()):
            raise SetupError(
                f"user {user.name} is not in account {user.account} after it was added", REMEDY
            )


def _text(account: KnownAccount | None) -> str:
    return f"{account.parent} and {account.fairshare}" if account else "no account"


def _warn_of_enforcement(node: Node, config: dict[str, str]) -> None:
    if node.settings.accounts and "associations" not in config.get("AccountingStorageEnforce", ""):
        node.warn(
            "Slurm does not require accounts: users without one may submit jobs, until "
            "AccountingStorageEnforce in slurm.conf has associations"
        )
    unequal = len({account.fairshare for account in node.settings.accounts}) > 1
    if unequal and config.get("PriorityWeightFairShare", "0") == "0":
        node.warn(
            "the accounts' fairshare has no effect: slurm.conf has no PriorityType=priority/multifactor "
            "with a PriorityWeightFairShare"
        )
