"""CDK targets on a machine without a sign-in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
BUILT = ("--old-file=.venv/.ready", "--old-file=node_modules/.ready")
NOBODY = {
    "PATH": os.environ["PATH"],
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["deploy"], "no AWS credentials found; run `aws configure sso`"),
        pytest.param(
            ["destroy", "ARGS=--force --profile absent"],
            "profile (absent) could not be found",
            marks=pytest.mark.long,
        ),
    ],
)
def test_it_is_one_line_before_a_synthesis(command: list[str], message: str) -> None:
    done = subprocess.run(
        ["make", *BUILT, *command],
        cwd=REPOSITORY,
        env=NOBODY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    first, last = done.stderr.splitlines()
    assert done.returncode == 2 and first.startswith("error: ") and message in first
    assert last.startswith("make: ***") and done.stdout == ""
