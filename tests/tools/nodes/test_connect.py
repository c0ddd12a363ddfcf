"""The whole command: SageMaker over HTTP, and programs that say how they were called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.tools.accounts import cluster_description
from tests.tools.nodes.slurm_nodes import group, node
from tools.command_line import run_command
from tools.nodes import connect as connect_tool

REPOSITORY = Path(__file__).parents[3]
GROUPS = [group("controller", "Controller", 1), group("workers", "Compute", 2)]
NODES = [node("controller", 1), node("workers", 1), node("workers", 2)]
CONTROLLER_TARGET = f"sagemaker-cluster:abc123def456_controller-{NODES[0]['InstanceId']}"


ANSWERS = {
    "DescribeCluster": cluster_description("esm2-slurm", GROUPS, status="Updating"),
    "ListClusterNodes": {"ClusterNodeSummaries": NODES},
}


class SageMaker(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert request["ClusterName"] == "esm2-slurm"
        answer = ANSWERS[self.headers["X-Amz-Target"].removeprefix("SageMaker.")]
        body = json.dumps(answer, default=lambda time: time.timestamp()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SageMaker)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A PATH with an aws command that prints its process id and arguments, one a line."""
    folder = tmp_path / "bin"
    folder.mkdir()
    install(folder, "session-manager-plugin", "exit 0")
    install(
        folder,
        "aws",
        'if [ "$1" = --version ]; then echo "aws-cli/2.31.0 Python/3.13"; exit; fi\n'
        'echo "pid $$"; printf "%s\\n" "$@"; exit 7',
    )
    return folder


def install(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


Connect = Callable[..., tuple[int, str, str]]


@pytest.fixture
def environment(endpoint: str, programs: Path) -> dict[str, str]:
    return {
        "PATH": str(programs),
        "HOME": str(programs.parent),
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "example",
    }


@pytest.fixture
def connect(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Connect:
    """Exit status, output and errors of the command in this process; the output has what it would become."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "execvp", lambda program, command: print(*command, sep="\n"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["connect", *arguments])
        with pytest.raises(SystemExit) as ended:
            run_command(connect_tool.main)
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_nodes_as_json(connect: Connect) -> None:
    status, output, _ = connect("--list", "--json")
    nodes = json.loads(output)["result"]["nodes"]
    assert status == 0 and nodes[0]["name"] and nodes[0]["status"] == "Running"
    status, output, _ = connect("--json")
    assert status == 2 and "add --list" in json.loads(output)["error"]


def test_the_command_becomes_a_session_with_the_head(environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.nodes.connect"],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    output, errors = process.communicate()
    shown_pid, *arguments = output.splitlines()
    assert (
        shown_pid == f"pid {process.pid}"
    )  # the same process: signals and the terminal are the session's
    assert process.returncode == 7
    assert arguments == [
        "ssm",
        "start-session",
        "--target",
        CONTROLLER_TARGET,
        "--region",
        "us-west-2",
        "--document-name",
        "esm2-slurm-shell",
    ]
    assert "note: the cluster is Updating" in errors
    assert "controller-1" in errors


def test_a_node_is_reached_by_name(connect: Connect) -> None:
    _, output, _ = connect("workers-2")
    assert f"sagemaker-cluster:abc123def456_workers-{NODES[2]['InstanceId']}" in output.splitlines()


def test_a_session_is_possible_without_the_document_of_the_cluster(connect: Connect) -> None:
    _, output, _ = connect("workers-2", "--plain-document")
    *_, document, name, parameters = output.splitlines()
    assert (document, name) == ("AWS-StartInteractiveCommand", "--parameters")
    assert json.loads(parameters) == {"command": ["sudo --login --user ubuntu"]}


def test_nodes_are_listed_without_any_program(connect: Connect, programs: Path) -> None:
    for program in programs.iterdir():
        program.unlink()
    status, output, _ = connect("--list")
    assert status == 0
    assert [line.split()[0] for line in output.splitlines()] == [
        "node",
        "controller-1",
        "workers-1",
        "workers-2",
    ]


def test_ssh_is_configured_and_stays_so(connect: Connect, programs: Path) -> None:
    config = programs.parent / ".ssh" / "config"
    for verb in ("wrote", "already had"):
        status, output, _ = connect("--ssh-config", "--user", "ada")
        assert status == 0
        assert f"{verb} Host esm2-slurm;" in output
    assert "    User ada\n" in config.read_text()
    assert f"--target {CONTROLLER_TARGET} " in config.read_text()


def test_the_block_can_be_printed_for_any_node(connect: Connect, programs: Path) -> None:
    status, output, _ = connect("workers-1", "--ssh-config", "-")
    assert status == 0
    assert output.startswith("Host esm2-slurm-workers-1\n")
    assert not (programs.parent / ".ssh").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda bin: (bin / "aws").unlink(), "the aws command is missing"),
        (
            lambda bin: (bin / "session-manager-plugin").unlink(),
            "session-manager-plugin is missing",
        ),
        (lambda bin: install(bin, "aws", "echo aws-cli/1.45.11"), "{bin}/aws is aws-cli/1.45.11"),
    ],
)
def test_missing_programs_are_named(
    change: Any, message: str, connect: Connect, programs: Path
) -> None:
    change(programs)
    status, _, errors = connect()
    assert status == 2
    assert f"error: {message.format(bin=programs)}" in errors
    assert "Traceback" not in errors


def test_a_wrong_node_is_an_error(connect: Connect) -> None:
    status, _, errors = connect("gpu")
    assert status == 2
    assert errors == (
        "error: no node gpu in cluster esm2-slurm; its nodes are controller-1, workers-1, workers-2\n"
    )


def test_without_credentials_the_error_says_what_to_run(programs: Path) -> None:
    environment = {
        "PATH": f"{programs}:{os.defpath}",
        "HOME": str(programs.parent),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tools.nodes.connect"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: no AWS credentials found; run `aws configure sso`")
