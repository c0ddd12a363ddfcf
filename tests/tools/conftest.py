from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.tools.preflight.eks_accounts import approved_template
from tests.tools.stacks.teardown_account import Account
from tools import preflight
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
