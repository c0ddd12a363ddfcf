"""Mistakes in a run are reported at submission: no job is created, and no node is allocated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.machine import CommandFailed
from tests.cluster.training import HOME, UID, submit

FULL = "/fsx/home/ada/full"


def refused(cluster: Cluster, *arguments: str) -> str:
    """Return the message of a refused submission, of which Slurm knows nothing."""
    numbers = cluster.controller.run(["sacct", "--allusers", "--noheader", "--format=JobID"]).output
    with pytest.raises(CommandFailed, match="status 2\nerror: ") as raised:
        submit(cluster, *arguments)
    assert cluster.controller.run(["squeue", "--noheader"]).output == ""
    assert (
        cluster.controller.run(["sacct", "--allusers", "--noheader", "--format=JobID"]).output
        == numbers
    )
    assert "Traceback" not in str(raised.value)
    return str(raised.value)


@pytest.fixture(params=["64k", "8m"], ids=["no room for code", "no room for a run"])
def full(cluster: Cluster, home: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A file system of that size, where the user submits from."""
    cluster.login.run(["install", "--directory", f"--owner={UID}", FULL])
    options = f"size={request.param},uid={UID},mode=0755"
    cluster.login.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", FULL])
    yield str(request.param)
    cluster.login.run(["umount", FULL])


def test_a_full_file_system(cluster: Cluster, full: str) -> None:
    said = refused(cluster, f"--folder={FULL}")
    problem = {
        "64k": f"the code cannot be copied to {FULL}/copies/",
        "8m": rf"{FULL}/runs/run: \d MiB are free, too little even for the smallest model's checkpoints",
    }
    assert re.search(problem[full], said) and "free space (df -h), or name a" in said


def test_a_run_file_that_cannot_be_read(cluster: Cluster, home: Path) -> None:
    (home / "secret.yaml").touch(mode=0o600)
    said = refused(cluster, f"--config={HOME}/secret.yaml")
    assert (
        f"{HOME}/secret.yaml cannot be read: Permission denied; name a YAML file that you may read"
        in said
    )


def test_an_image_that_is_not_there(cluster: Cluster, home: Path) -> None:
    said = refused(cluster, "--python=", "--image=/fsx/images/esm2.sqsh")
    assert (
        "/fsx/images/esm2.sqsh is not there; docs/training-on-slurm.md says how it gets there"
        in said
    )
