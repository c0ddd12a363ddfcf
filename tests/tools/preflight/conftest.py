from __future__ import annotations

import pytest

from tools.preflight import observability

METADATA = (
    '<EntityDescriptor xmlns="urn:oasis:names:tc:SAML:2.0:metadata" entityID="https://idp.example.com"/>'
)


@pytest.fixture(autouse=True)
def identity_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of clusters/slurm-p5.yaml, which no network has."""
    monkeypatch.setattr(observability, "_fetch", lambda url: METADATA.encode())
