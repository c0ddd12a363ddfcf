"""make image: commands for the engine, files of the build, and refusals."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.images.container_engines import Engines
from tests.tools.images.image_sources import BASE, git, make_repository
from tools.command_line import run_command
from tools.images import build as image
from tools.images.container_engine import ContainerEngine, find_engine
from tools.images.source_revision import read_revision

ENGINES = ("docker", "buildah", "podman")


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    return Engines(tmp_path, monkeypatch)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = make_repository(tmp_path)
    monkeypatch.setattr(image, "REPOSITORY", made)
    return made


def make_image(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """Its exit status."""
    monkeypatch.setattr(sys, "argv", ["image", *arguments])
    with pytest.raises(SystemExit) as stopped:
        run_command(image.main)
    return stopped.value.code


def build_arguments(call: dict[str, Any]) -> dict[str, str]:
    given = call["arguments"]
    return dict(given[i + 1].split("=", 1) for i, word in enumerate(given) if word == "--build-arg")


@pytest.mark.parametrize("name", ENGINES)
def test_build_is_of_the_commit(
    name: str, engines: Engines, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.install(name)
    sha = git(repository, "rev-parse", "HEAD")
    assert make_image(monkeypatch) == 0
    call = next(call for call in engines.calls if call["arguments"][0] == "build")
    assert build_arguments(call) == {
        "BASE_IMAGE": f"{BASE['image']}@{BASE['digest']}",
        "GIT_SHA": sha,
        "CREATED": "2026-03-04T05:06:07Z",
        "SOURCE_DATE_EPOCH": "1772600767",
    }
    assert {".dockerignore", "LICENSE", "docker/versions.json", "workloads/Dockerfile"} <= {
        *call["files"]
    }
    assert not [file for file in call["files"] if file.startswith("config")]
    words = call["arguments"]
    assert words[words.index("--tag") + 1] == f"esm2-training:{sha}"
    assert words[words.index("--platform") + 1] == "linux/amd64"
    assert ("--timestamp" in words) == (name != "docker")
    assert ("--provenance=false" in words) == (name == "docker")


def test_another_framework_has_its_own_base_and_name(
    engines: Engines,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engines.install("buildah")
    assert make_image(monkeypatch, "--framework=bionemo") == 2
    said = capsys.readouterr().err
    assert "bionemo/versions.json: base.digest is None" in said
    assert "docker buildx imagetools inspect registry.example/other:2" in said
    assert engines.calls == []
    versions = repository / "docker/bionemo/versions.json"
    versions.write_text(versions.read_text().replace("null", f'"sha256:{"cd" * 32}"'))
    git(repository, "commit", "--quiet", "--all", "--message", "pinned")
    sha = git(repository, "rev-parse", "HEAD")
    assert make_image(monkeypatch, "--framework=bionemo") == 0
    (call,) = engines.calls
    words = call["arguments"]
    assert build_arguments(call)["BASE_IMAGE"] == f"registry.example/other@sha256:{'cd' * 32}"
    assert build_arguments(call)["GIT_SHA"] == f"{sha}-bionemo", (
        "as the registry's tag, which identifies it"
    )
    assert words[words.index("--tag") + 1] == f"esm2-bionemo:{sha}"
    assert words[words.index("--file") + 1].endswith("docker/bionemo/Dockerfile")


def test_the_same_commit_gives_the_same_build_arguments(
    engines: Engines, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the folder of the files differs."""
    engines.install("buildah")
    make_image(monkeypatch)
    make_image(monkeypatch)
    first, second = ([w for w in call["arguments"] if "/image-" not in w] for call in engines.calls)
    assert first == second


def test_uncommitted_files_of_the_image_are_refused(
    engines: Engines,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engines.install("buildah")
    (repository / "workloads/new.py").write_text("")
    (repository / "LICENSE").write_text("otherwise\n")
    assert make_image(monkeypatch) == 2
    message = capsys.readouterr().err
    assert "workloads/new.py" in message and "LICENSE" in message and "--allow-dirty" in message
    assert engines.calls == []
    assert make_image(monkeypatch, "--allow-dirty") == 0
    assert build_arguments(engines.calls[0])["GIT_SHA"].endswith("-dirty")
    assert "workloads/new.py" in engines.calls[0]["files"]


def test_other_changes_do_not_matter(
    engines: Engines, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.install("buildah")
    (repository / "config/cluster.py").write_text("x = 2\n")
    assert make_image(monkeypatch) == 0


def test_options_reach_the_engine(
    engines: Engines, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.install("docker", "buildah")
    assert make_image(monkeypatch, "--engine=buildah", "--", "--no-cache") == 0
    assert engines.calls[0]["name"] == "buildah"
    assert "--no-cache" in engines.calls[0]["arguments"]


def test_failed_build_is_one_line(
    engines: Engines,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engines.install("podman")
    engines.fail("build")
    assert make_image(monkeypatch) == 2
    assert "podman could not build esm2-training:" in capsys.readouterr().err


def test_engine_is_the_first_that_works(engines: Engines) -> None:
    engines.install("docker", "podman")
    assert find_engine().name == "docker"
    engines.fail("version")  # docker without its daemon
    assert find_engine().name == "podman"
    assert find_engine("docker").name == "docker"


def test_no_engine_is_a_message(engines: Engines) -> None:
    with pytest.raises(ValueError, match="install docker, buildah or podman"):
        find_engine()
    with pytest.raises(ValueError, match="podman is not installed; there are: none"):
        find_engine("podman")
    engines.install("docker")
    engines.fail("version")
    with pytest.raises(ValueError, match="daemon does not answer"):
        find_engine()


def test_no_repository_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(ValueError, match="build from a clone"):
        read_revision(tmp_path)


def test_password_goes_by_standard_input_alone(engines: Engines) -> None:
    engines.install("docker")
    with ContainerEngine("docker").logged_in("registry.example", user="AWS", password="secret"):
        assert engines.verbs() == ["login"]
    assert engines.verbs() == ["login", "logout"]
    assert engines.calls[0]["stdin"] == "secret"
    assert not any("secret" in word for call in engines.calls for word in call["arguments"])
    assert "secret" not in os.environ.values()


def test_logged_out_also_after_a_failure(engines: Engines) -> None:
    engines.install("buildah")
    engines.fail("push")
    engine = ContainerEngine("buildah")
    with (
        pytest.raises(ValueError, match="could not push"),
        engine.logged_in("registry.example", user="AWS", password="secret"),
    ):
        engine.push("here:1", "registry.example/there:1")
    assert engines.verbs() == ["login", "tag", "push", "logout"]


def test_refused_login_is_a_message(engines: Engines) -> None:
    engines.install("podman")
    engines.fail("login")
    with (
        pytest.raises(ValueError, match=r"could not log in to .*: login refused"),
        ContainerEngine("podman").logged_in("registry.example", user="AWS", password="secret"),
    ):
        pass
