#!/usr/bin/python3 -IS
"""Shown at log-in, from /etc/update-motd.d: what this node is, how its set-up went, where things are.

It reads local files alone, so that a shared file system that hangs keeps nobody out.
"""

import json
from pathlib import Path

FACTS = json.loads("""@FACTS@""")
STATE = Path("@STATE@")


def main() -> None:
    lines = [f"{FACTS['cluster']}: {FACTS['role']} of group {FACTS['group']}", *outcome(), "", *places()]
    print("\n".join(["", *(f"  {line}".rstrip() for line in lines), ""]))


def outcome() -> list[str]:
    try:
        state = json.loads(STATE.read_text())
        steps = state["steps"]
        warnings = [f"  {step['name']}: {text}" for step in steps for text in step["warnings"]]
        failed = next((step for step in steps if step["error"]), None)
        finished = state["finished"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"Set-up: no result of it in {STATE}; see {FACTS['log']}"]
    lines = [f"Set-up: {len(steps)} steps, finished {finished}" if failed is None else "Set-up FAILED"]
    if failed is not None:
        lines += [f"  {finished} in step {failed['name']}: {failed['error']}", f"  Log: {FACTS['log']}"]
    if warnings:
        lines += ["Warnings:", *warnings]
    return lines


def places() -> list[str]:
    return [f"{what + ':':<13}{where}" for what, where in FACTS["places"]]


if __name__ == "__main__":
    main()
