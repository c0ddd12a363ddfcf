"""Everything that is downloaded is named by its hash, digest or commit."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENTS = REPOSITORY / "environments"
LOCKS = [
    REPOSITORY / "requirements.lock",
    REPOSITORY / "docker/requirements-build.txt",
    REPOSITORY / "docker/requirements-uv.txt",
    *sorted(ENVIRONMENTS.glob("*.lock")),
    *sorted((REPOSITORY / "docker").rglob("*.lock")),
]
WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.y*ml"))
INSTALLERS = re.compile(r"pip install |install_with_uv\.py\W+--|npm (?:install|i) |npx ")
"""Beginnings of commands that install packages."""
SAFE_OPTIONS = ("--require-hashes", "--no-index", "--dry-run")
"""Options with which an installer takes only what is locked, nothing of an index, or nothing at all."""


def pins(text: str) -> dict[str, str]:
    """Return the exact versions of a file of requirements by normalized name."""
    found = re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.relative_to(REPOSITORY)))
def test_every_locked_package_has_a_version_and_hashes(lock: Path) -> None:
    entry = re.compile(r"[\w.-]+==\S+(?: ;[^\\]*)? (?:\\\n    --hash=sha256:[0-9a-f]{64} ?)+\n")
    lines = lock.read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("#"))
    assert pins(text)
    assert not entry.sub("", text).strip()


@pytest.mark.parametrize("file", sorted(ENVIRONMENTS.glob("*.txt")), ids=lambda file: file.stem)
def test_locks_have_the_pins_of_their_environments(file: Path) -> None:
    wanted = pins(file.read_text())
    locked = pins(file.with_suffix(".lock").read_text())
    if file.stem == "biotrainer":
        # Its torch is that of the developer environment.
        assert wanted.pop("torch") == pins((REPOSITORY / "requirements.txt").read_text())["torch"]
    assert wanted and wanted == {name: locked.get(name) for name in wanted}, "run: make lock"


def test_both_builds_of_torch_have_the_version_of_requirements_txt() -> None:
    version = pins((REPOSITORY / "requirements.txt").read_text())["torch"]
    assert pins((ENVIRONMENTS / "torch.lock").read_text())["torch"] == version
    assert pins((ENVIRONMENTS / "torch-cpu.lock").read_text())["torch"] == f"{version}+cpu"


def test_packages_of_node_have_their_hashes() -> None:
    """``npm ci`` installs them."""
    packages = json.loads((REPOSITORY / "package-lock.json").read_text())["packages"]
    fetched = [about for name, about in packages.items() if name]
    assert fetched
    assert all(about["integrity"].startswith("sha512-") for about in fetched)


def commands() -> list[tuple[str, str]]:
    """Return the lines of files that run programs, each with its file. Continued lines are joined."""
    files = [REPOSITORY / "Makefile", REPOSITORY / ".ci/run", *WORKFLOWS]
    for folder in ("docker", "lifecycle", "tests", "tools", "workloads", "functions"):
        for pattern in ("*.sh", "*.sbatch", "*Dockerfile"):
            files += sorted((REPOSITORY / folder).rglob(pattern))
    found = []
    for file in files:
        text = file.read_text().replace("\\\n", " ")
        found += [(str(file.relative_to(REPOSITORY)), line) for line in text.splitlines()]
    return found


def test_nothing_is_installed_without_hashes() -> None:
    installing = [
        (file, line)
        for file, line in commands()
        if INSTALLERS.search(line) and not line.lstrip().startswith("#")
    ]
    assert len(installing) > 6
    assert not [
        (file, line)
        for file, line in installing
        if not any(option in line for option in SAFE_OPTIONS)
    ]


def jobs() -> list[dict[str, Any]]:
    workflows = [yaml.safe_load(file.read_text()) for file in WORKFLOWS]
    return [job for workflow in workflows for job in workflow["jobs"].values()]


def test_actions_are_named_by_commit_and_images_by_digest() -> None:
    used = [line for file in WORKFLOWS for line in file.read_text().splitlines() if "uses:" in line]
    assert used
    for line in used:
        assert re.fullmatch(r"\s*- uses: [\w.-]+/[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line)
    for job in jobs():
        assert re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", job["container"]["image"])


def test_no_privileged_job_runs_the_code_of_strangers() -> None:
    own = "github.event.pull_request.head.repo.full_name == github.repository"
    for file in WORKFLOWS:
        workflow = yaml.safe_load(file.read_text())
        # YAML 1.1 reads the key `on` as true.
        assert "pull_request_target" not in workflow[True]
        assert workflow["permissions"] == {"contents": "read"}
    for job in jobs():
        if "--privileged" in job["container"].get("options", ""):
            assert job["if"] == f"github.event_name == 'push' || {own}"


def test_the_package_names_the_licence_of_its_data() -> None:
    """The bundled samples are CC BY 4.0."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    texts = [
        path.read_text()
        for path in (REPOSITORY / "workloads/seqlm").rglob("README.md")
        if "CC BY 4.0" in path.read_text()
    ]
    assert texts
    assert project["license"] == "MIT-0 AND CC-BY-4.0"
