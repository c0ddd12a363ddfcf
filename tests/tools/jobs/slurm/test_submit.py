"""make ... TARGET=slurm from outside of the cluster: code by the bucket, then the job by a session."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from config.content_hash import content_hash
from tests.tools.answering_aws import ACCOUNT, AnsweringAws
from tests.tools.cluster_files import shipped
from tests.tools.json_documents import RunJson
from tests.tools.nodes.node_sessions import NodeSessions
from tools.jobs import __main__ as command
from tools.jobs import code_version
from tools.jobs.slurm import jobs
from tools.nodes import activity
from tools.nodes.head_node import HeadNode

RUN = "workloads/seqlm/configs/esm2_8m_sample.yaml"
BUCKET = f"sagemaker-esm2-slurm-{ACCOUNT}-us-west-2"
FOUND = {
    "job": "12",
    "log": "/fsx/x/job.log",
    "metrics": "/fsx/x/metrics.jsonl",
    "report": "/fsx/x/report.html",
}


class Head(HeadNode):
    """Says what a head node would, and remembers what it was to run."""

    def __init__(self) -> None:
        super().__init__("controller-1", ("aws",))
        object.__setattr__(self, "ran", [])
        object.__setattr__(self, "answer", (0, ["a greeting", json.dumps(FOUND)]))

    def run_as_root(self, script: str, arguments: Sequence[str], say: Callable[[str], None]) -> int:
        self.ran.append(["root", script, *arguments])  # type: ignore[attr-defined]
        return 0

    def run(self, user: str, command: Sequence[str], say: Callable[[str], None]) -> int:
        self.ran.append([user, *command])  # type: ignore[attr-defined]
        status, lines = self.answer  # type: ignore[attr-defined]
        for line in lines:
            say(line)
        return int(status)


@pytest.fixture
def uploads() -> list[str]:
    return []


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, uploads: list[str]) -> Any:
    aws = AnsweringAws("us-west-2")
    head = Head()
    aws.answer("sts", "GetCallerIdentity", {"Account": ACCOUNT})
    there = f"workloads/{code_version.code_hash()}/seqlm/training/train.py"
    aws.answer("s3", "ListObjectsV2", {"Contents": [{"Key": there}]})

    def put(parameters: dict[str, Any]) -> dict[str, Any]:
        assert parameters["Bucket"] == BUCKET
        uploads.append(parameters["Key"])
        return {}

    aws.answer("s3", "PutObject", put)
    monkeypatch.setattr(code_version, "open_session", lambda region, profile: aws.session)
    monkeypatch.setattr(jobs, "find_head_node", lambda cluster, profile: head)
    monkeypatch.setattr(jobs, "slurm_is_here", lambda: False)
    return head


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    words = [
        "jobs",
        "submit",
        "train",
        "--config",
        RUN,
        "--image",
        "/fsx/images/esm2.sqsh",
        *arguments,
    ]
    monkeypatch.setattr(sys, "argv", words)
    return command.main()


def test_code_goes_ahead_and_the_job_follows(
    head: Any,
    uploads: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "parallel.mode=fsdp", "--nodes", "1", "optim.lr=1e-4") == 0
    version = code_version.code_hash()
    assert f"workloads/{version}/seqlm/launch/train.sbatch" in uploads
    # Existing files stay, and files that running the code creates are not copied.
    assert f"workloads/{version}/seqlm/training/train.py" not in uploads
    assert not [key for key in uploads if "__pycache__" in key]
    brought, folder, job = head.ran
    address = f"s3://{BUCKET}/workloads/{version}"
    assert brought[2:] == ["us-west-2", address, f"/fsx/workloads/{version}"]
    assert folder[2:] == ["/fsx", "ubuntu"]
    request = json.loads(job[-1])
    assert job[0] == "ubuntu" and "--nodes=1" in request["sbatch"]
    assert request["job"]["overrides"][:2] == ["parallel.mode=fsdp", "optim.lr=1e-4"]
    assert request["job"]["code"] == f"/fsx/ubuntu/esm2/code/{version}" == job[5]
    printed = capsys.readouterr().out
    assert dict(re.findall(r"^(\w+) +(\S+)$", printed, flags=re.MULTILINE)).items() >= FOUND.items()
    assert "make tail JOB=12" in printed


def test_a_submission_as_json(head: Any, uploads: list[str], run_json: RunJson) -> None:
    words = ("submit", "train", "--config", RUN, "--image", "/fsx/images/esm2.sqsh")
    result = run_json(command.main, *words)["result"]
    assert result["job"] == FOUND["job"] and "make tail JOB=12" in result["next"]
    assert {"name": "log", "value": FOUND["log"]} in result["places"]


def test_a_refusal_is_the_message(head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    object.__setattr__(head, "answer", (2, ["error: Slurm refuses the job: no such partition"]))
    with pytest.raises(ValueError, match=r"^Slurm refuses the job: no such partition$"):
        run(monkeypatch)


def test_a_mistake_in_the_run_sends_no_request(
    head: Any, uploads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"optim\.lr: got 'fast'"):
        run(monkeypatch, "optim.lr=fast")
    assert not uploads and not head.ran


def test_commands_run_as_the_user_and_without_roots_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = NodeSessions(tmp_path / "aws")
    program = sessions.folder / "bin" / "runuser"
    program.write_text('#!/bin/bash\necho "become $2"; shift 3; exec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", sessions.path)
    head = HeadNode(
        "controller-1", ("aws", "ssm", "start-session", "--target", "x", "--region", "us-west-2")
    )
    said: list[str] = []
    command = [
        "bash",
        "-c",
        'echo "$USER $HOME ${HISTFILE-none}"; echo "$1"; exit 5',
        "x",
        'it\'s "q"',
    ]
    assert head.run("root", command, said.append) == 5
    assert said == ["become root", "root /root none", 'it\'s "q"']
    assert head.run("nobody-there", command, said.append) == 2
    assert said[-1].startswith("error: there is no user nobody-there")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("data", "tools.jobs submit data"),
        ("train-ddp", "tools.jobs submit train .* parallel.mode=ddp"),
        ("train-fsdp", "tools.jobs submit train .* parallel.mode=fsdp name=esm2_650m_fsdp"),
        ("evaluate", "tools.jobs submit evaluate"),
        ("predict", "tools.jobs submit predict"),
        ("bandwidth", "tools.jobs submit bandwidth"),
    ],
)
def test_make_passes_its_variables_on(target: str, words: str) -> None:
    asked = [
        "TARGET=slurm",
        "NODES=4",
        "IMAGE=/fsx/x.sqsh",
        "SUBMIT=--time 2:00",
        "ARGS=optim.lr=1e-4",
    ]
    config = [] if target == "bandwidth" else ["CONFIG=workloads/seqlm/configs/esm2_650m.yaml"]
    command = ["make", "--dry-run", target, *asked, *config]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert re.search(words, said)
    for option in ("--nodes 4", "--image /fsx/x.sqsh", "--time 2:00", "optim.lr=1e-4"):
        assert option in said
    assert ("--config workloads/" in said) == (target != "bandwidth")


@pytest.mark.parametrize(
    ("stage", "config", "problem"),
    [
        ("bandwidth", ["--config", RUN], "the bandwidth job runs no training"),
        ("evaluate", [], "--config: name the YAML file of the run to evaluate"),
    ],
)
def test_a_run_file_where_one_belongs(
    monkeypatch: pytest.MonkeyPatch, stage: str, config: list[str], problem: str
) -> None:
    monkeypatch.setattr(jobs, "slurm_is_here", lambda: False)
    monkeypatch.setattr(sys, "argv", ["jobs", "submit", stage, "--image", "/fsx/x.sqsh", *config])
    with pytest.raises(ValueError, match=problem):
        command.main()


def bring(tmp_path: Path, aws: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "bin" / "aws"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/bash\n{aws}\n")
    program.chmod(0o755)
    return subprocess.run(
        [
            "bash",
            str(code_version.BRING_CODE),
            "us-west-2",
            "s3://b/workloads/1",
            f"{tmp_path}/workloads/1",
        ],
        env={"PATH": f"{program.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_submissions_at_the_same_time_share_a_copy_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_version, "deployed_folder", lambda cluster: tmp_path / "not deployed")
    with ThreadPoolExecutor() as pool:
        found = set(
            pool.map(lambda _: code_version.copy_here(shipped("slurm"), str(tmp_path)), range(4))
        )
    copy = tmp_path / "copies" / code_version.code_hash()
    assert found == {str(copy)} and [path.name for path in copy.parent.iterdir()] == [copy.name]
    assert content_hash(copy, {}) == copy.name


def test_code_is_brought_whole_or_not_at_all(tmp_path: Path) -> None:
    failed = bring(tmp_path, 'touch "${@: -1}/half"; exit 1')
    assert (
        failed.returncode == 1 and "could not be copied from s3://b/workloads/1/" in failed.stderr
    )
    assert list((tmp_path / "workloads").iterdir()) == []
    assert bring(tmp_path, 'touch "${@: -1}/train.py"').returncode == 0
    assert [path.name for path in (tmp_path / "workloads/1").iterdir()] == ["train.py"]
    # Once there it is not fetched again.
    assert bring(tmp_path, "exit 1").returncode == 0


def test_status_adds_what_the_service_reports(
    head: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aws = AnsweringAws("us-west-2")
    aws.answer("sagemaker", "ListClusterOperations", {"ClusterOperationSummaries": []})
    aws.answer("sagemaker", "ListClusterEvents", {"Events": []})
    aws.answer("sagemaker", "ListClusterNodes", {"ClusterNodeSummaries": []})
    monkeypatch.setattr(activity, "open_session", lambda region, profile: aws.session)
    object.__setattr__(head, "answer", (0, ["JOBID NAME STATE"]))
    monkeypatch.setattr(sys, "argv", ["jobs", "status"])
    assert command.main() == 0
    assert capsys.readouterr().out == (
        "JOBID NAME STATE\n\nimages: none is reported as stale\noperations: none\nevents: none\n"
    )
