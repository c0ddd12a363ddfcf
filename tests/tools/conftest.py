from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.json_documents import RunJson, check_paths
from tests.tools.kubernetes_api import Objects, api_server
from tests.tools.preflight.eks_accounts import approved_template
from tests.tools.stacks.teardown_account import Account
from tools import preflight
from tools.command_line import run_command
from tools.json_forms import COMMANDS, COMMON_STATUSES
from tools.preflight import observability, planned
from tools.stacks import teardown

METADATA = '<EntityDescriptor xmlns="urn:oasis:names:tc:SAML:2.0:metadata" entityID="https://idp.example.com"/>'


@pytest.fixture(autouse=True)
def identity_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of clusters/slurm-p5.yaml, which no network has."""
    monkeypatch.setattr(observability, "_fetch", lambda url: METADATA.encode())


@pytest.fixture(autouse=True)
def no_synthesis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most checks need no templates, and a synthesis takes seconds."""
    monkeypatch.setattr(planned, "synthesize", lambda cluster: planned.Synthesis({}, []))


EVERY_CLUSTERS_CHECKS = preflight.CHECKS


@pytest.fixture
def approved(no_synthesis: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the synthesis by the approved templates, and leave only the checks of EKS."""
    monkeypatch.setattr(
        planned, "synthesize", lambda cluster: planned.Synthesis(approved_template(cluster), [])
    )
    monkeypatch.setattr(preflight, "CHECKS", {})


@pytest.fixture
def all_checks(approved: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "CHECKS", EVERY_CLUSTERS_CHECKS)


@pytest.fixture
def run_teardown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on an account; returns what it printed."""

    def run(account: Account, *arguments: str) -> str:
        monkeypatch.setattr(teardown, "open_session", lambda region, profile: account.aws.session)
        monkeypatch.setattr(teardown, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(
            sys, "argv", ["teardown", "--cluster", "clusters/slurm.yaml", *arguments]
        )
        assert teardown.main() == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def run_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunJson:
    """Run a command with ``--json``, and return its document after a comparison with the table."""

    def run(main: Callable[[], int], *words: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["command", *words, "--json"])
        with pytest.raises(SystemExit) as ended:
            run_command(main)
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        command = COMMANDS[document["command"]]
        assert document["exit_status"] == ended.value.code
        assert ended.value.code in {**command.statuses, **COMMON_STATUSES}
        check_paths(document["result"], command)
        return document

    return run


@pytest.fixture(scope="module")
def module_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Objects, Path]]:
    """Stand-in of Kubernetes' API, one per module: kubectl keeps what a server can do by its address."""
    with api_server(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def server(
    module_server: tuple[Objects, Path],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Objects, Path]:
    """The server, without the objects of earlier tests."""
    objects, kubeconfig = module_server
    objects.clear()
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path_factory.getbasetemp() / "kubectl"))
    return objects, kubeconfig
