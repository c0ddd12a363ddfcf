from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.tools.teardown_account import Account
from tools import data_links, stack_deletion, teardown
from tools.preflight import observability

METADATA = (
    '<EntityDescriptor xmlns="urn:oasis:names:tc:SAML:2.0:metadata" entityID="https://idp.example.com"/>'
)


@pytest.fixture(autouse=True)
def identity_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of clusters/slurm-p5.yaml, which no network has."""
    monkeypatch.setattr(observability, "_fetch", lambda url: METADATA.encode())


@pytest.fixture
def run_teardown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on an account; returns what it printed."""

    def run(account: Account, *arguments: str) -> str:
        monkeypatch.setattr(teardown, "open_session", lambda region, profile: account.aws.session)
        monkeypatch.setattr(stack_deletion, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(data_links, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(sys, "argv", ["teardown", "--cluster", "clusters/slurm.yaml", *arguments])
        assert teardown.main() == 0
        return capsys.readouterr().out

    return run
