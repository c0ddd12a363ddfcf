"""make patch: what it says about jobs, when it refuses, and its request."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools.answering_aws import AnsweringAws, Parameters
from tests.tools.json_documents import RunJson
from tests.tools.nodes.slurm_nodes import group, node, running_cluster
from tools.nodes import patch

GROUPS = [group("controller", "Controller", 1), group("workers", "Compute", 2)]
NODES = [node("controller", 1), node("workers", 1), node("workers", 2)]
IMAGE = {"CurrentImageReleaseVersion": "1.1.0", "ImageVersionStatus": "UpdateAvailable"}
BATCHES = {"max_nodes": 1, "wait_seconds": 300, "rollback_alarms": ["gpu-errors"]}
SIZE = {"Type": "INSTANCE_COUNT", "Value": 1}
JOB = "job 12 of ada on ip-10-0-119-1, running for 5:00 of 1-00:00:00: esm2"


class Jobs:
    """Scheduler that knows the jobs of nodes."""

    def __init__(self) -> None:
        self.running: list[str] = []

    def jobs(self, nodes: list[Any]) -> list[str]:
        assert {found.group for found in nodes} == {"workers"}
        return self.running


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    found = Jobs()

    @contextmanager
    def placement(*_: object) -> Iterator[Jobs]:
        yield found

    monkeypatch.setattr(patch, "open_placement", placement)
    return found


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Parameters]:
    """Requests of UpdateClusterSoftware."""
    sent: list[Parameters] = []
    aws: AnsweringAws = running_cluster("esm2-slurm", GROUPS, [found | IMAGE for found in NODES])

    def update(parameters: Parameters) -> dict[str, Any]:
        sent.append(parameters)
        return {"ClusterArn": "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl"}

    aws.answer("sagemaker", "UpdateClusterSoftware", update)
    monkeypatch.setattr(patch, "open_session", lambda region, profile: aws.session)
    return sent


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the shipped cluster file with changed fields of its groups."""

    def write(**changes: dict[str, Any]) -> Path:
        document = yaml.safe_load(Path("clusters/slurm.yaml").read_text())
        for found in document["instance_groups"]:
            found.update(changes.get(found["name"], {}))
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return write


Run = Callable[..., int]


@pytest.fixture
def run(jobs: Jobs, requests: list[Parameters], monkeypatch: pytest.MonkeyPatch) -> Run:
    def command(path: Path, *words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["patch", *words, "--cluster", str(path)])
        return patch.main()

    return command


def test_batches_and_alarms_of_the_file_are_requested(
    run: Run,
    jobs: Jobs,
    requests: list[Parameters],
    file: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs.running = [JOB]
    assert run(file(workers={"rolling_update": BATCHES}), "workers", "--yes") == 0
    assert requests == [
        {
            "ClusterName": "esm2-slurm",
            "InstanceGroups": [{"InstanceGroupName": "workers"}],
            "DeploymentConfig": {
                "RollingUpdatePolicy": {"MaximumBatchSize": SIZE, "RollbackMaximumBatchSize": SIZE},
                "WaitIntervalInSeconds": 300,
                "AutoRollbackConfiguration": [{"AlarmName": "gpu-errors"}],
            },
        }
    ]
    said = capsys.readouterr().out
    assert "workers: 2 node(s) with release 1.1.0, UpdateAvailable" in said
    assert "takes up to 1 nodes of a group at the same time" in said
    assert "If gpu-errors is raised, it returns to the earlier image." in said
    assert "Slurm requeues jobs unless they forbid it" in said and f"  {JOB}\n" in said
    assert "patch the controller first" in said


def test_all_nodes_at_once_wait_until_no_job_runs(
    run: Run,
    jobs: Jobs,
    requests: list[Parameters],
    file: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = file()
    jobs.running = [JOB]
    words = ("controller", "workers", "--all-at-once", "--yes")
    assert run(path, *words) == patch.JOBS_RUN
    said = capsys.readouterr()
    assert "the queue of jobs is lost" in said.out and "NOT DONE: jobs run" in said.err
    assert not requests
    assert run(path, *words, "--now", "--release", "1.2.3") == 0
    releases = [
        {"InstanceGroupName": name, "ImageReleaseVersion": "1.2.3"}
        for name in ("controller", "workers")
    ]
    assert requests == [{"ClusterName": "esm2-slurm", "InstanceGroups": releases}]


def test_an_image_of_the_account_stays(
    run: Run, requests: list[Parameters], file: Callable[..., Path]
) -> None:
    path = file(workers={"image_id": "ami-0123456789abcdef0"})
    assert run(path, "workers", "--all-at-once", "--yes") == 0
    assert requests[0]["ImageId"] == "ami-0123456789abcdef0"


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        ({}, [], "GROUP: name the groups to patch; esm2-slurm has controller, workers"),
        ({}, ["p5"], "GROUP: got p5; esm2-slurm has controller, workers"),
        ({}, ["workers"], "without rolling_update the service updates all nodes"),
        (
            {"workers": {"rolling_update": BATCHES}},
            ["workers", "controller"],
            "have different values of rolling_update",
        ),
        (
            {"workers": {"image_id": "ami-0123456789abcdef0"}},
            ["workers", "controller", "--all-at-once"],
            "have different values of image_id",
        ),
        (
            {"workers": {"image_id": "ami-0123456789abcdef0"}},
            ["workers", "--all-at-once", "--release", "1.2.3"],
            "--release: the cluster file sets image_id",
        ),
        (
            {},
            ["workers", "--all-at-once", "--release", "latest"],
            "--release: got latest; a release",
        ),
        (
            {"workers": {"rolling_update": BATCHES}},
            ["workers", "--now"],
            "--now: batches do not wait for jobs anyway",
        ),
    ],
)
def test_mistakes_send_no_request(
    changes: dict[str, Any],
    words: list[str],
    message: str,
    run: Run,
    requests: list[Parameters],
    file: Callable[..., Path],
) -> None:
    with pytest.raises(ValueError, match=message):
        run(file(**changes), *words, "--yes")
    assert not requests


def test_the_update_as_json(
    jobs: Jobs, requests: list[Parameters], run_json: RunJson, file: Callable[..., Path]
) -> None:
    path = str(file(workers={"rolling_update": {"max_percent": 50}}))
    document = run_json(patch.main, "workers", "--cluster", path, "--yes")
    assert document["command"] == "patch" and document["exit_status"] == 0
    assert document["result"] == {
        "images": [
            {
                "group": "workers",
                "instance_type": "ml.g5.8xlarge",
                "release": "1.1.0",
                "status": "UpdateAvailable",
                "num_nodes": 2,
            }
        ],
        "jobs": [],
        "groups": ["workers"],
    }
