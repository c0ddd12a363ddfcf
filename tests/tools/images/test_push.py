"""make push: against a stand-in for ECR that botocore's model checks, with engines that record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools import answering_aws
from tests.tools.answering_aws import Refusal
from tests.tools.images.container_engines import Engines
from tests.tools.images.image_sources import git, make_repository
from tests.tools.images.registries import (
    DIGEST,
    NAME,
    PASSWORD,
    REGISTRY,
    Registry,
    WholeFindings,
    scan,
)
from tests.tools.json_documents import RunJson
from tests.tools.nodes.sleeping import only_sleep
from tools.command_line import run_command
from tools.images import build, image_registry
from tools.images.image_registry import registry_login

CLUSTER = "clusters/slurm.yaml"


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    return Engines(tmp_path, monkeypatch)


@pytest.fixture
def registry(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(answering_aws, "SecondPages", WholeFindings)
    made = Registry(engines)
    monkeypatch.setattr(image_registry, "open_session", lambda region, profile: made.aws.session)
    monkeypatch.setattr(image_registry, "time", only_sleep(lambda seconds: pytest.fail("waited")))
    return made


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = make_repository(tmp_path)
    monkeypatch.setattr(build, "REPOSITORY", made)
    return made


def make_push(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["build", "--push", "--cluster", CLUSTER, *arguments])
    with pytest.raises(SystemExit) as stopped:
        run_command(build.main)
    return stopped.value.code


def test_a_pushed_image_as_json(
    engines: Engines, registry: Registry, repository: Path, run_json: RunJson
) -> None:
    engines.install("buildah")
    document = run_json(build.main, "--push", "--cluster", CLUSTER)
    assert document["command"] == "push"
    assert document["result"]["image"] == f"{REGISTRY}/{NAME}@{DIGEST}"


def test_push_prints_the_reference_by_digest(
    engines: Engines,
    registry: Registry,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    engines.install("buildah")
    sha = git(repository, "rev-parse", "HEAD")
    assert make_push(monkeypatch) == 0
    printed = capfd.readouterr()
    assert printed.out == f"{REGISTRY}/{NAME}@{DIGEST}\n"
    assert "image scan: CRITICAL 1, HIGH 2" in printed.err
    assert f"{REGISTRY}/{NAME}:{sha}@{DIGEST}" in printed.err
    assert engines.verbs() == ["inspect", "login", "tag", "push", "logout"]
    tagged = engines.calls[2]["arguments"]
    assert tagged == ["tag", f"esm2-training:{sha}", f"{REGISTRY}/{NAME}:{sha}"]
    assert engines.calls[1]["stdin"] == PASSWORD
    everything = str([call["arguments"] for call in engines.calls]) + printed.out + printed.err
    assert PASSWORD not in everything


def test_frameworks_share_the_repository(
    engines: Engines, registry: Registry, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside each other, by tag, since a commit has an image of each."""
    engines.install("buildah")
    sha = git(repository, "rev-parse", "HEAD")
    assert make_push(monkeypatch) == make_push(monkeypatch, "--framework=bionemo") == 0
    tagged = [call["arguments"] for call in engines.calls if call["arguments"][0] == "tag"]
    assert tagged == [
        ["tag", f"esm2-training:{sha}", f"{REGISTRY}/{NAME}:{sha}"],
        ["tag", f"esm2-bionemo:{sha}", f"{REGISTRY}/{NAME}:{sha}-bionemo"],
    ]


def test_second_push_only_prints(
    engines: Engines,
    registry: Registry,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engines.install("docker")
    assert make_push(monkeypatch) == 0
    first = capsys.readouterr().out
    calls = engines.verbs()
    assert make_push(monkeypatch) == 0
    assert capsys.readouterr().out == first
    assert engines.verbs() == calls


def test_uncommitted_is_never_pushed(
    engines: Engines, registry: Registry, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.install("docker")
    (repository / "workloads/new.py").write_text("")
    assert make_push(monkeypatch) == 2
    assert engines.calls == [] and registry.aws.calls == []


def test_image_must_have_been_built(
    engines: Engines,
    registry: Registry,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engines.install("buildah")
    engines.fail("inspect")
    assert make_push(monkeypatch) == 2
    assert "run make image first" in capsys.readouterr().err
    assert engines.verbs() == ["inspect"]


def test_repository_must_have_been_deployed(
    engines: Engines,
    registry: Registry,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    registry.aws.answer("ecr", "DescribeRepositories", Refusal("RepositoryNotFoundException"))
    assert make_push(monkeypatch) == 2
    assert f"image repository {NAME} does not exist in us-west-2" in capsys.readouterr().err


NOT_BEGUN = Refusal("ScanNotFoundException")


@pytest.mark.parametrize(
    ("scans", "summary"),
    [
        ([NOT_BEGUN, scan("IN_PROGRESS"), scan("COMPLETE", {"LOW": 3})], "image scan: LOW 3"),
        ([scan("COMPLETE")], "image scan: no findings"),
        ([scan("ACTIVE", {"MEDIUM": 1})], "image scan: MEDIUM 1"),
        ([scan("PENDING")], "image scan: not finished after 300 s; make push shows it later"),
        ([scan("UNSUPPORTED_IMAGE")], "image scan: UNSUPPORTED_IMAGE: no reason given"),
    ],
)
def test_scan_is_waited_for_with_a_bound(
    registry: Registry, scans: list[dict[str, Any] | Refusal], summary: str
) -> None:
    registry.scans = list(scans)
    assert registry.summary() == summary


def test_scanning_that_is_off_is_said_at_once(registry: Registry) -> None:
    registry.scans_on_push = False
    registry.scans = [NOT_BEGUN]
    assert registry.summary() == "image scan: none, scanning is off for this repository"
    assert len(registry.aws.calls) == 1


def test_password_is_in_no_representation(registry: Registry) -> None:
    login = registry_login(registry.aws.session.client("ecr"))
    assert (login.registry, login.user, login.password) == (REGISTRY, "AWS", PASSWORD)
    assert PASSWORD not in repr(login)
