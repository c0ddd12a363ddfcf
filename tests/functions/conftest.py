from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

SESSION: Any = boto3.Session("none", "none", region_name="us-west-2")
"""``Any`` because the types of boto3 know services by literals only."""


@contextmanager
def stubbed(service: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    """Answers only the requests that the test expects, and accepts only what the API accepts."""
    client = SESSION.client(service)
    monkeypatch.setattr(boto3, "client", lambda name: {service: client}[name])
    with Stubber(client) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


@pytest.fixture
def sagemaker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    with stubbed("sagemaker", monkeypatch) as stubber:
        yield stubber


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    with stubbed("ec2", monkeypatch) as stubber:
        yield stubber
