"""Every make and cdk command of README and docs, typed: make takes its variables, its program the options."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from seqlm.runs.run_file import load_config
from tests.tools.documents.document_commands import REPOSITORY, commands

DOCUMENTS = [
    REPOSITORY / "README.md",
    REPOSITORY / "AGENTS.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
CDK_COMMANDS = {"bootstrap", "deploy", "destroy", "diff", "list", "synth"}
REPLACED = {
    r"\$\(make push\)|<[^<>]*>": "filled",
    r"\$CONFIG": "workloads/seqlm/configs/esm2_8m.yaml",
    r"IMAGE=\.\.\.": "IMAGE=/fsx/x.sqsh",
    r"\b(CONFIG|CLUSTER)=\.\.\.": "",
    r"\.\.\.": "",
    r"(.*TARGET=eks.*)clusters/mine": r"\1clusters/eks",
    "clusters/mine": "clusters/slurm",
}
"""Placeholders of the documents, each with a value to type."""


class ParsedError(BaseException):
    """A program has taken its options, and does no more."""


def typed(document: Path) -> list[str]:
    found = []
    for line in commands(document.read_text()):
        for pattern, value in REPLACED.items():
            line = re.sub(pattern, value, line)
        parts = (part.strip() for part in re.split(r"&&|;", line.partition("  #")[0]))
        found += [part for part in parts if re.match(r"(make|(npx )?cdk) [a-z]", part)]
    return sorted(set(found))


@cache
def programs(command: str) -> list[tuple[str, list[str]]]:
    """Modules that make would start, with their arguments; nothing is started."""
    words = ["make", "--dry-run", "--no-print-directory", *shlex.split(command)[1:]]
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(
        words, cwd=REPOSITORY, env=clean, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    lines = done.stdout.replace("\\\n", " ").splitlines()
    started = [re.search(r"-m ((?:tools|seqlm|benchmarks)\.[\w.]+)(.*)", line) for line in lines]
    return [(found[1], shlex.split(found[2])) for found in started if found]


@pytest.fixture
def stops_when_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for name in ("parse_args", "parse_intermixed_args", "parse_known_args"):
        parse = getattr(argparse.ArgumentParser, name)

        def parsed(self: Any, *arguments: Any, parse: Any = parse, **keywords: Any) -> None:
            parse(self, *arguments, **keywords)
            raise ParsedError

        monkeypatch.setattr(argparse.ArgumentParser, name, parsed)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_is_taken(
    document: Path, stops_when_parsed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    for command in typed(document):
        if not command.startswith("make"):
            assert command.removeprefix("npx ").split()[1] in CDK_COMMANDS, command
            continue
        for module, words in programs(command):
            if module.startswith("seqlm.") and words[:1] == ["--config"]:
                words = [word for word in words if word not in ("--dry-run", "--help")]
                config = Path(words[1])
                told = (
                    config.parts[0] == "runs"
                    or f"`{config}` is a whole task file" in document.read_text()
                )
                assert config.is_file() or told, command
                load_config(
                    config if config.is_file() else "workloads/seqlm/configs/esm2_8m.yaml",
                    words[2:],
                )
                continue
            monkeypatch.setattr(sys, "argv", [module, *words])
            found = importlib.util.find_spec(module)
            started = f"{module}.__main__" if found and found.submodule_search_locations else module
            monkeypatch.delitem(sys.modules, started, raising=False)  # runpy warns of it
            with pytest.raises((ParsedError, SystemExit)) as ended:
                runpy.run_module(module, run_name="__main__")
            assert ParsedError in (type(ended.value), type(ended.value.__context__)), command


def test_there_are_commands_of_every_kind() -> None:
    found = {command.split()[1] for document in DOCUMENTS for command in typed(document)}
    assert {
        "train-ddp",
        "predict",
        "fetch",
        "deploy",
        "connect",
        "gpu",
        "synth",
        "destroy",
    } <= found
