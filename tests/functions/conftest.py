from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from botocore.stub import Stubber


@pytest.fixture
def sagemaker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    """Answers only what the test expects to be asked, and takes only what the API takes."""
    client = boto3.client(
        "sagemaker", region_name="us-west-2", aws_access_key_id="none", aws_secret_access_key="none"
    )
    monkeypatch.setattr(boto3, "client", lambda service: {"sagemaker": client}[service])
    with Stubber(client) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()
