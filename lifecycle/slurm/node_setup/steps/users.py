"""Users and groups of the cluster file on every node: numbers, homes, ssh keys and sudo."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from node_setup.home import is_home_of, make_home
from node_setup.host import SHOWN_CHARACTERS
from node_setup.identities import bring_group, bring_user, check_user, read_known, shut_out
from node_setup.node import Node
from node_setup.root_folder import root_folder
from node_setup.settings import User

RECORD = "/var/lib/node-setup/users.json"
"""Users that the cluster file has named on this node; only these can be locked later."""
SUDOERS = "/etc/sudoers.d/50-cluster-administrators"
SUDOERS_MODE = 0o440
SECONDS_FOR_SSH = 30
"""Time limit for one user's ~/.ssh."""
SECONDS_FOR_ALL = 3600
"""Time limit of all of them."""
SUDOERS_HEAD = (
    "# Administrators of the cluster file. Replaced by node-setup: changes here are lost.\n"
)


def apply(node: Node) -> None:
    """Adjust users and groups to the cluster file, and lock users who were removed from it.

    If nothing changes, the number of programs that it starts does not grow with the users. Keys are in the
    homes, which all nodes share, so only controllers set them up.

    Raises:
        SetupError: if a name or number is taken, or a home cannot be created or used.
    """
    users = node.settings.users
    record = node.host.path(RECORD)
    recorded = set(json.loads(record.read_text())) if record.exists() else set()
    named = {user.name for user in users}
    former = sorted(recorded - named)
    known = read_known(node.host, users, node.settings.groups, former)
    for user in users:
        check_user(user, known)
    # The record comes first, so that no user is forgotten if this run ends early.
    if recorded | named or record.exists():
        node.host.write_text(RECORD, json.dumps(sorted(recorded | named)) + "\n", mode=0o600)
    for group in node.settings.groups:
        bring_group(node, group, known)
    gids = {group.name: group.gid for group in node.settings.groups}
    for user in users:
        bring_user(node, user, gids[user.group], home_of(node, user), known)
    _allow_sudo(node)
    for name in former:
        shut_out(node, name, known)
    if not users:
        return
    with root_folder(node.host, homes_folder(node)) as homes:
        missing = [user for user in users if not is_home_of(homes / user.name, user.uid)]
    for user in missing:
        home = home_of(node, user)
        if make_home(node.host, home, user.uid, gids[user.group]):
            node.changed(f"{home}: made")
    if node.facts.role == "controller":
        _bring_ssh(node, users, gids)


def homes_folder(node: Node) -> str:
    return node.settings.home_mount_path or f"{node.settings.shared_path}/home"


def home_of(node: Node, user: User) -> str:
    return f"{homes_folder(node)}/{user.name}"


def _allow_sudo(node: Node) -> None:
    """Allow sudo to administrators by name, because Ubuntu's group sudo requires a password."""
    admins = sorted(user.name for user in node.settings.users if user.admin)
    if not admins:
        node.remove(SUDOERS)
        return
    text = SUDOERS_HEAD + "".join(f"{name} ALL=(ALL:ALL) NOPASSWD: ALL\n" for name in admins)
    # A file with a mistake would disable sudo on the node.
    handle, candidate = tempfile.mkstemp()
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        node.host.run("visudo", "--check", "--quiet", f"--file={candidate}")
    finally:
        Path(candidate).unlink()
    node.install(SUDOERS, text, mode=SUDOERS_MODE)


def _bring_ssh(node: Node, users: Sequence[User], gids: Mapping[str, int]) -> None:
    """Set up ~/.ssh of each user as that user, never as root (see home.py). A failure is only a warning."""
    wanted = [
        {
            "name": user.name,
            "uid": user.uid,
            "gid": gids[user.group],
            "home": str(node.host.path(home_of(node, user))),
            "keys": list(user.ssh_keys),
        }
        for user in users
    ]
    output = node.host.run(
        "python3",
        "-I",
        "-B",
        node.files / "users_ssh.py",
        str(SECONDS_FOR_SSH),
        stdin=json.dumps(wanted),
        timeout_seconds=SECONDS_FOR_ALL,
    )
    for result in json.loads(output):
        home = f"{homes_folder(node)}/{result['name']}"
        if result["status"] is None:
            node.warn(
                f"{home}/.ssh of {result['name']} does not answer within {SECONDS_FOR_SSH} s; look at the "
                "files in it"
            )
            continue
        if result["status"] != 0:
            said = " ".join((result["errors"].strip() or result["output"].strip()).split())
            node.warn(
                f"{home}/.ssh of {result['name']} is not as it should be: {said[-SHOWN_CHARACTERS:]}; "
                f"as this user see `ls -la {home}/.ssh`"
            )
        for line in result["output"].splitlines():
            node.changed(line)
