"""A stand-in for sacctmgr, with its database in a JSON file."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def sacctmgr(path: Path, words: list[str]) -> int:
    """The part of sacctmgr that the steps use; a user with jobs (``busy``) keeps his accounts."""
    database = json.loads(path.read_text())
    accounts = database["accounts"]
    users = database["users"]
    admins = database["admins"]
    plain = [word for word in words if "=" not in word and not word.startswith("--")]
    given = dict(word.split("=", 1) for word in words if "=" in word)
    name = given.get("name", "")
    limits, qos = database.setdefault("limits", {}), database.setdefault("qos", {"normal": {}})
    columns = given.get("format", "").split(",")
    match plain:
        case ["show", "assoc", "where", "woplimits"]:
            rows = [
                [account, "", *rest, *columns_of(limits.get(account, {}), columns[4:])]
                for account, rest in accounts.items()
            ]
            empty = [""] * len(columns[4:])
            rows += [
                [account, user, "", "1", *empty] for user, mine in users.items() for account in mine
            ]
        case ["show", "qos"]:
            rows = [[found, *columns_of(qos[found], columns[1:])] for found in qos]
        case ["add", "qos"]:
            qos[name] = {}
        case ["modify", "qos", "where", "set"]:
            set_limits(qos[name], given)
        case ["remove", "qos", "where"]:
            del qos[name]
        case ["show", "user"]:
            rows = [
                [user, mine[0], "Administrator" if user in admins else "None"]
                for user, mine in users.items()
                if mine
            ]
        case ["show", "cluster"]:
            rows = [["hyperpod", "10.0.0.10"]]
        case ["show", "configuration"]:
            print("AccountingStorageHost  = localhost\nStorageHost            = localhost")
            rows = []
        case ["add", "account"]:
            accounts[name] = [given["parent"], given["fairshare"]]
        case ["add", "user"]:
            users.setdefault(name, []).append(given["account"])
        case ["modify", "account", "where", "set"]:
            unknown = [one for one in given.get("qos", "").split(",") if one and one not in qos]
            if unknown:
                print(f" Unknown QOS '{unknown[0]}'", file=sys.stderr)
                return 1
            old = accounts[name]
            set_limits(limits.setdefault(name, {}), given)
            accounts[name] = [given.get("parent", old[0]), given.get("fairshare", old[1])]
        case ["modify", "user", "where", "set"] if "adminlevel" in given:
            admins[:] = [admin for admin in admins if admin != name]
            admins += [name] if given["adminlevel"] == "Administrator" else []
        case ["modify", "user", "where", "set"]:
            users[name].sort(key=lambda account: account != given["defaultaccount"])
        case ["remove", "user", "where"]:
            if name in database["busy"]:
                print(" Error with request: Job(s) active, cancel job(s) before remove")
                return 1
            if len(users[name]) > 1 and users[name][0] == given["account"]:
                print(" Error with request: You can not remove the default account of a user")
                return 1
            users[name].remove(given["account"])
        case _:
            print(f"unexpected: {words}", file=sys.stderr)
            return 64
    if plain[0] == "show":
        print("".join("|".join(row) + "\n" for row in rows), end="")
    elif given.get("cluster") not in (None, "hyperpod"):
        return 64
    path.write_text(json.dumps(database))
    return 0


def columns_of(limits: dict[str, str], columns: list[str]) -> list[str]:
    """Return the shown value of each column."""
    return [limits.get(column, "") for column in columns]


def set_limits(limits: dict[str, str], given: dict[str, str]) -> None:
    """Set what the words after ``set`` say; -1 removes a limit, and one of a resource leaves the others."""
    for column, value in given.items():
        if column in ("name", "cluster", "parent", "fairshare"):
            continue
        if "=" in value:
            old = dict(part.split("=") for part in limits.get(column, "").split(",") if part)
            merged = old | dict(part.split("=") for part in value.split(","))
            value = ",".join(f"{one}={n}" for one, n in sorted(merged.items()) if n != "-1")
        limits[column] = "" if value == "-1" else value
