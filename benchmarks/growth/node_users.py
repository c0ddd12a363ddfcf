"""Programs that node setup starts for the users of the cluster file, counted with stand-ins.

The module needs ``lifecycle/slurm`` on Python's path, so it runs in a process of its own.
"""

import os
from functools import partial
from pathlib import Path
from unittest import mock

from node_setup.host import Host
from node_setup.steps import users
from tests.lifecycle.node import StandIns, node_of
from tests.lifecycle.user_database import user_command

EMPTY_DATABASE = '{"passwd": [], "group": [], "shadow": [], "homes_given": [], "busy": []}'
COMMANDS = ("getent", "groups", "groupadd", "useradd", "usermod")
FIRST_UID = 80_000


def count_programs(num_users: int, folder: str) -> int:
    """Return the number of programs that a run starts on a node whose users are set up already."""
    place = Path(folder) / str(num_users)
    stand_ins = StandIns(place / "stand_ins")
    database = place / "database"
    database.write_text(EMPTY_DATABASE)
    for name in COMMANDS:
        stand_ins.function(name, partial(user_command, database, name))
    stand_ins.command("visudo")
    group = {"name": "research", "gid": os.getgid()}
    wanted = [
        {
            "name": f"user{number}",
            "uid": FIRST_UID + number,
            "group": group["name"],
            "groups": [],
            "ssh_keys": [],
            "account": None,
            "admin": False,
        }
        for number in range(num_users)
    ]

    def try_run(host: Host, *command: str | Path, **options: object) -> object:
        return stand_ins.try_run(host, *command, **options)

    # Homes of other users need root's rights.
    with (
        mock.patch.object(Host, "try_run", try_run),
        mock.patch.object(users, "is_home_of", return_value=True),
        mock.patch.dict(os.environ, PATH=stand_ins.path),
    ):
        users.apply(node_of(place, "workers", users=wanted, groups=[group]))
        stand_ins.forget_calls()
        users.apply(node_of(place, "workers", users=wanted, groups=[group]))
    return len(stand_ins.calls)
