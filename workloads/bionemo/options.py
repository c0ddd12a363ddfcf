"""The command lines that BioNeMo's entry points take, as ``options.json`` has them recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

OPTIONS_FILE = Path(__file__).with_name("options.json")
EntryPointName = Literal["train_esm2", "finetune_esm2", "convert"]


@dataclass(frozen=True)
class EntryPoint:
    module: str
    function: str
    required: tuple[str, ...]
    options: dict[str, Any]
    """Name to its kind, or the list of values that it takes."""
    commands: dict[str, list[str]]
    """Names of subcommands and of their arguments; usually there are none."""

    def problems(self, arguments: Sequence[str]) -> list[str]:
        """What of a command line the entry point would refuse."""
        words = list(arguments)
        found = []
        if self.commands:
            command = words.pop(0) if words else ""
            if command not in self.commands:
                return [f"{command!r}: no such command; allowed are {', '.join(self.commands)}"]
            given = [words.pop(0) for _ in self.commands[command] if words and not words[0].startswith("--")]
            found += [f"{name}: is missing" for name in self.commands[command][len(given) :]]
        seen = set()
        while words:
            name, equals, value = words.pop(0).partition("=")
            if name not in self.options:
                found.append(f"{name}: no such option")
                continue
            seen.add(name)
            kind = self.options[name]
            if kind == "flag":
                found += [f"{name}: takes no value, got {value!r}"] if equals else []
                continue
            if not equals:
                value = words.pop(0) if words and not words[0].startswith("--") else ""
            if problem := _value_problem(kind, value):
                found.append(f"{name}: got {value!r}; {problem}")
        return found + [f"{name}: is missing" for name in self.required if name not in seen]


@cache
def recorded_release() -> str:
    """Of BioNeMo Framework, whose command lines are recorded."""
    return str(json.loads(OPTIONS_FILE.read_text())["release"])


@cache
def entry_point(name: EntryPointName) -> EntryPoint:
    found = json.loads(OPTIONS_FILE.read_text())["entry_points"][name]
    required, commands = tuple(found["required"]), found.get("commands", {})
    return EntryPoint(found["module"], found["function"], required, found["options"], commands)


def _value_problem(kind: Any, value: str) -> str:
    if isinstance(kind, list):
        return "" if value in kind else f"allowed are {', '.join(kind)}"
    if kind in ("path", "text", "texts"):
        return "" if value else "expected a value"
    if kind == "number or None" and value == "None":
        return ""
    try:
        int(value) if kind in ("int", "ints") else float(value)
    except ValueError:
        return "expected a whole number" if kind in ("int", "ints") else "expected a number"
    return ""
