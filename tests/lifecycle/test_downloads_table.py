"""The table of downloads is whole, and has what the steps ask for, for each architecture of the catalogue."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from config.facts.instance_catalogue import INSTANCE_TYPES
from tests.lifecycle.node import SCRIPTS

TABLE = json.loads((SCRIPTS / "downloads.json").read_text())
MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}
"""The kernel's names of the catalogue's architectures."""
ARCHITECTURES = {MACHINES[kind.architecture] for kind in INSTANCE_TYPES.values()}


def asked_for(function: str) -> set[str]:
    """Second arguments with which the steps call a function of downloads.py."""
    names = set()
    for step in (SCRIPTS / "node_setup/steps").glob("*.py"):
        for call in ast.walk(ast.parse(step.read_text())):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id == function
            ):
                assert isinstance(call.args[1], ast.Constant)
                names.add(str(call.args[1].value))
    return names


def test_entries_have_all_fields() -> None:
    for entry in TABLE["files"]:
        assert set(entry) == {"name", "version", "architecture", "url", "sha256"}
        assert re.fullmatch(r"[0-9a-f]{64}", entry["sha256"])
        assert entry["url"].startswith("https://") and entry["version"] in entry["url"]
        assert entry["architecture"] in ARCHITECTURES
    for image in TABLE["images"]:
        assert set(image) == {"name", "version", "architectures", "reference"}
        assert re.fullmatch(r"[\w./-]+@sha256:[0-9a-f]{64}", image["reference"])


def test_no_two_entries_are_the_same() -> None:
    files = TABLE["files"]
    for key in (
        lambda entry: (entry["name"], entry["architecture"]),
        lambda entry: entry["sha256"],
    ):
        assert len({key(entry) for entry in files}) == len(files)
    # The mirror has one folder for all.
    assert len({Path(entry["url"]).name for entry in files}) == len(files)


def test_what_steps_ask_for_is_there_for_each_architecture() -> None:
    files = {(entry["name"], entry["architecture"]) for entry in TABLE["files"]}
    names = asked_for("install_binaries")
    assert names == {"node_exporter", "prometheus"}
    assert files == {(name, architecture) for name in names for architecture in ARCHITECTURES}
    images = {image["name"]: set(image["architectures"]) for image in TABLE["images"]}
    assert images == dict.fromkeys(asked_for("find_image"), ARCHITECTURES)


def test_versions_are_the_same_for_each_architecture() -> None:
    versions = {(entry["name"], entry["version"]) for entry in TABLE["files"]}
    assert len(versions) == len({name for name, _ in versions})
