"""Users and groups of the cluster file on every node: numbers, homes, ssh keys and sudo."""

import json
import os
import tempfile
from pathlib import Path

from node_setup.failure import SetupError
from node_setup.home import make_home
from node_setup.identities import bring_group, bring_user, check_number, shut_out
from node_setup.node import Node
from node_setup.root_folder import make_root_folder
from node_setup.settings import User

RECORD = "/var/lib/node-setup/users.json"
"""Users that the cluster file has named on this node; only these can be locked later."""
SUDOERS = "/etc/sudoers.d/50-cluster-administrators"
SUDOERS_MODE = 0o440
SECONDS_FOR_SSH = 30
LIMITED = 'set -o pipefail; "$@" 2> >(head --bytes=65536 >&2) | head --bytes=65536'
"""Shell script that runs a command and limits its output, which a user could make endless."""
SUDOERS_HEAD = (
    "# Administrators of the cluster file. Replaced by node-setup: changes here are lost.\n"
)


def apply(node: Node) -> None:
    """Adjust users and groups to the cluster file, and lock users who were removed from it.

    Raises:
        SetupError: if a name or number is taken, or a home cannot be created or used.
    """
    users = node.settings.users
    for user in users:
        check_number(node.host, "user", user.name, user.uid)
    record = node.host.path(RECORD)
    recorded = set(json.loads(record.read_text())) if record.exists() else set()
    named = {user.name for user in users}
    # The record comes first, so that no user is forgotten if this run ends early.
    if recorded | named or record.exists():
        node.host.write_text(RECORD, json.dumps(sorted(recorded | named)) + "\n", mode=0o600)
    for group in node.settings.groups:
        bring_group(node, group)
    gids = {group.name: group.gid for group in node.settings.groups}
    for user in users:
        bring_user(node, user, gids[user.group], home_of(node, user))
    _allow_sudo(node)
    for name in sorted(recorded - named):
        shut_out(node, name)
    if users:
        make_root_folder(node.host, homes_folder(node))
    for user in users:
        home = home_of(node, user)
        if make_home(node.host, home, user.uid, gids[user.group]):
            node.changed(f"{home}: made")
        _bring_ssh(node, user, home, gids[user.group])


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


def _bring_ssh(node: Node, user: User, home: str, gid: int) -> None:
    """Set up ~/.ssh as the user, never as root (see home.py). A failure is only a warning."""
    path = str(node.host.path(home))
    script = (node.files / "user_ssh.py").read_text()
    try:
        done = node.host.try_run(
            "bash",
            "-c",
            LIMITED,
            "user_ssh",
            "setpriv",
            f"--reuid={user.uid}",
            f"--regid={gid}",
            "--clear-groups",
            "--reset-env",
            "--",
            # The script is an argument, because users may not be able to read its folder.
            "python3",
            "-I",
            "-c",
            script,
            path,
            stdin=json.dumps(list(user.ssh_keys)),
            timeout_seconds=SECONDS_FOR_SSH,
        )
    except SetupError:
        node.warn(
            f"{home}/.ssh of {user.name} does not answer within {SECONDS_FOR_SSH} s; look at the files in it"
        )
        return
    if done.status != 0:
        node.warn(
            f"{home}/.ssh of {user.name} is not as it should be: {done.said}; "
            f"as this user see `ls -la {home}/.ssh`"
        )
    for line in done.output.splitlines():
        node.changed(line)
