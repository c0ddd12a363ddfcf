"""A stand-in for the commands that keep users.

The database is JSON: passwd, group and shadow, each a list of lines as lists of fields.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NOT_FOUND = 2
USER_IS_BUSY = 8


def getent(database: dict[str, Any], name: str, *keys: str) -> int:
    number = 2 if name != "shadow" else 0
    status = 0
    for key in keys:
        entry = next((entry for entry in database[name] if key in (entry[0], entry[number])), None)
        if entry:
            print(":".join(entry))
        else:
            status = NOT_FOUND
    return status


def groups(database: dict[str, Any], *names: str) -> int:
    for name in names:
        gid = next(entry[3] for entry in database["passwd"] if entry[0] == name)
        found = [e[0] for e in database["group"] if e[2] == gid or name in e[3].split(",")]
        print(f"{name} : {' '.join(found)}")
    return 0


def usermod(database: dict[str, Any], options: dict[str, str], name: str) -> None:
    entry = next(entry for entry in database["passwd"] if entry[0] == name)
    shadow = next(entry for entry in database["shadow"] if entry[0] == name)
    entry[5] = options.get("--home", entry[5])
    entry[3] = options.get("--gid", entry[3])
    shadow[7] = options.get("--expiredate", shadow[7])
    if "--gid" in options:
        # usermod gives the files of the home that it knows to the new group.
        database["homes_given"].append(entry[5])
    if "--groups" in options:
        for group in database["group"]:
            members = [m for m in group[3].split(",") if m and m != name]
            group[3] = ",".join(members + [name] * (group[0] in options["--groups"].split(",")))


def user_command(path: Path, command: str, words: list[str]) -> int:
    """The part of ``command`` that the steps use, on the database at ``path``; its status."""
    database = json.loads(path.read_text())
    if command == "getent":
        return getent(database, *words)
    if command == "groups":
        return groups(database, *words)
    flags = ("--lock", "--no-create-home")
    words = [word for word in words if word not in flags]
    options = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
    name = words[-1]
    if command == "groupadd":
        database["group"].append([name, "x", options["--gid"], ""])
    elif command == "useradd":
        uid = options["--uid"]
        gid = options["--gid"]
        database["passwd"].append(
            [name, "x", uid, gid, "", options["--home-dir"], options["--shell"]]
        )
        database["shadow"].append([name, "!", "1", "0", "9", "7", "", "", ""])
    elif "--home" in options and name in database["busy"]:
        print(f"usermod: user {name} is currently used by process 7", file=sys.stderr)
        return USER_IS_BUSY
    else:
        usermod(database, options, name)
    path.write_text(json.dumps(database))
    return 0
