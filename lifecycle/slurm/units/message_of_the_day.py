#!/usr/bin/python3 -IS
"""Message at login, from /etc/update-motd.d: the node, the outcome of its setup, and important paths.

It reads only local files, so that a hanging shared file system does not block logins.
"""

import json
from pathlib import Path

FACTS = json.loads("""@FACTS@""")
STATE = Path("@STATE@")


def main() -> None:
    lines = [
        f"{FACTS['cluster']}: {FACTS['role']} of group {FACTS['group']}",
        *outcome(),
        "",
        *places(),
    ]
    print("\n".join(["", *(f"  {line}".rstrip() for line in lines), ""]))


def outcome() -> list[str]:
    try:
        state = json.loads(STATE.read_text())
        steps = state["steps"]
        warnings = [f"  {step['name']}: {text}" for step in steps for text in step["warnings"]]
        failed = next((step for step in steps if step["error"]), None)
        finished = state["finished"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"Setup: no result in {STATE}; see {FACTS['log']}"]
    lines = [
        f"Setup: {len(steps)} steps, finished {finished}" if failed is None else "Setup FAILED"
    ]
    if failed is not None:
        lines += [
            f"  {finished} in step {failed['name']}: {failed['error']}",
            f"  Log: {FACTS['log']}",
        ]
    if warnings:
        lines += ["Warnings:", *warnings]
    return lines


def places() -> list[str]:
    return [f"{what + ':':<13}{where}" for what, where in FACTS["places"]]


if __name__ == "__main__":
    main()
