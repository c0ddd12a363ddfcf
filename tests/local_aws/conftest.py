from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local_aws.deployment import ACCOUNT, REPOSITORY, LocalAws

REGIONS = ("us-west-2", "us-east-1")  # of the shipped cluster files


@pytest.fixture(scope="session")
def empty_aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    """An account in which nothing was done yet."""
    log = tmp_path_factory.mktemp("local_aws") / "server.log"
    with log.open("w") as errors:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.local_aws.server"],
            cwd=REPOSITORY,
            env=LocalAws("").environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url, f"the server did not start:\n{log.read_text()}"
        yield LocalAws(url)
        server.terminate()
        server.wait(timeout=30)


@pytest.fixture(scope="session")
def aws(empty_aws: LocalAws, tmp_path_factory: pytest.TempPathFactory) -> LocalAws:
    """The account after `cdk bootstrap`."""
    environments = [f"aws://{ACCOUNT}/{region}" for region in REGIONS]
    folder: Path = tmp_path_factory.mktemp("bootstrap")
    output = empty_aws.cdk("bootstrap", *environments, cwd=folder)
    assert output.count("bootstrapped") == len(REGIONS)
    return empty_aws
