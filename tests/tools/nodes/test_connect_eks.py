"""make connect on EKS: a kubeconfig that works anywhere, and shells on nodes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.answering_aws import AnsweringAws, Refusal
from tests.tools.nodes.slurm_nodes import node, running_cluster
from tools.kubernetes import kubectl
from tools.nodes import connect

NODES = [node("system", 1), node("workers", 1), node("workers", 2)]
for each in NODES:
    del each["PrivateDnsHostname"]
GROUPS = [
    {"InstanceGroupName": name, "CurrentCount": 1, "TargetCount": 1}
    for name in ("system", "workers")
]
# Asks for a token as kubectl does, wherever it is called, and shows it with its arguments.
KUBECTL = f"""#!{sys.executable}
import json, os, subprocess, sys
file = next(word for word in sys.argv if word.startswith("--kubeconfig=")).partition("=")[2]
user = json.load(open(file))["users"][0]["user"]["exec"]
environment = os.environ | {{each["name"]: each["value"] for each in user["env"]}}
done = subprocess.run(
    [user["command"], *user["args"]], cwd="/", env=environment, capture_output=True, text=True, check=True
)
print(json.loads(done.stdout)["status"]["token"][:11], *sys.argv[3:5])
"""
Connect = Callable[..., int]


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> AnsweringAws:
    aws = running_cluster("esm2-eks", GROUPS, NODES)
    described = {
        "endpoint": "https://e",
        "certificateAuthority": {"data": "Q0E="},
        "status": "ACTIVE",
    }
    aws.answer("eks", "DescribeCluster", {"cluster": described})
    for module in (connect, kubectl):
        monkeypatch.setattr(module, "open_session", lambda region, profile: aws.session)
    return aws


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH, and a home and credentials of its own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, value in {
        "PATH": str(folder),
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    install(folder, "kubectl", KUBECTL)
    return folder


def install(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def run(aws: AnsweringAws, programs: Path, monkeypatch: pytest.MonkeyPatch) -> Connect:
    def command(*arguments: str, file: str = "clusters/eks.yaml") -> int:
        monkeypatch.setattr(sys, "argv", ["connect", "--cluster", file, *arguments])
        return connect.main()

    return command


def test_a_kubeconfig_that_works_from_any_folder(
    run: Connect, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("of other clusters")
    assert run() == 0
    path = tmp_path / ".kube" / "esm2-eks"
    output = capsys.readouterr().out
    assert "k8s-aws-v1. get nodes\n" in output
    assert f"export KUBECONFIG={path}\n" in output
    config = json.loads(path.read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://e"
    assert config["contexts"][0]["context"]["namespace"] == "hyperpod-training"
    assert "secret" not in path.read_text() and "AKIDEXAMPLE" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert {found.name for found in path.parent.iterdir()} == {"config", "esm2-eks"}
    assert (path.parent / "config").read_text() == "of other clusters"


def test_it_goes_where_one_says(
    run: Connect, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--kubeconfig", "-") == 0
    printed = json.loads(capsys.readouterr().out)
    assert not (tmp_path / ".kube").exists()
    assert run("--kubeconfig", str(tmp_path / "mine")) == 0
    assert json.loads((tmp_path / "mine").read_text()) == printed


def test_with_teams_no_namespace_is_chosen(
    run: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--kubeconfig", "-", file="clusters/eks-p5.yaml") == 0
    assert "namespace" not in json.loads(capsys.readouterr().out)["contexts"][0]["context"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout",
            "kubernetes.public_access_cidrs",
        ),
        (
            "error: You must be logged in to the server (Unauthorized)",
            "kubernetes.access in the cluster file",
        ),
    ],
)
def test_reports_a_cluster_that_does_not_answer_and_keeps_the_file(
    said: str,
    message: str,
    run: Connect,
    programs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(programs, "kubectl", f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
    assert run() == 1
    told = capsys.readouterr()
    assert message in told.err
    assert "make connect ARGS=--tunnel" in told.out
    assert "export KUBECONFIG=" in told.out
    assert (tmp_path / ".kube" / "esm2-eks").is_file()


def test_a_cluster_that_is_not_there(run: Connect, aws: AnsweringAws, tmp_path: Path) -> None:
    aws.answer("eks", "DescribeCluster", Refusal("ResourceNotFoundException"))
    with pytest.raises(
        ValueError, match="no EKS cluster esm2-eks in us-west-2; make deploy creates it"
    ):
        run()
    assert not (tmp_path / ".kube").exists()


@pytest.mark.parametrize(
    "name", ["workers-2", NODES[2]["InstanceId"], f"hyperpod-{NODES[2]['InstanceId']}"]
)
def test_a_shell_on_a_node_by_any_of_its_names(
    name: str, run: Connect, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become: list[Any] = []
    monkeypatch.setattr(os, "execvp", lambda program, command: become.extend(command))
    install(programs, "aws", "#!/bin/sh\necho aws-cli/2.31.0\n")
    install(programs, "session-manager-plugin", "#!/bin/sh\n")
    run(name)
    target = f"sagemaker-cluster:abc123def456_workers-{NODES[2]['InstanceId']}"
    assert become == ["aws", "ssm", "start-session", "--target", target, "--region", "us-west-2"]


def test_a_tunnel_reaches_a_private_api_server_through_a_running_node(
    run: Connect, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become: list[str] = []
    monkeypatch.setattr(os, "execvp", lambda program, command: become.extend(command))
    install(programs, "aws", "#!/bin/sh\necho aws-cli/2.31.0\n")
    install(programs, "session-manager-plugin", "#!/bin/sh\n")
    run("--tunnel", "9443")
    server = json.loads((tmp_path / ".kube" / "esm2-eks").read_text())["clusters"][0]["cluster"]
    assert (server["server"], server["tls-server-name"]) == ("https://127.0.0.1:9443", "e")
    assert server["certificate-authority-data"] == "Q0E="
    assert become[4] == f"sagemaker-cluster:abc123def456_system-{NODES[0]['InstanceId']}"
    parameters = {"host": ["e"], "portNumber": ["443"], "localPortNumber": ["9443"]}
    document = "AWS-StartPortForwardingSessionToRemoteHost"
    assert become[-4:] == ["--document-name", document, "--parameters", json.dumps(parameters)]


def test_ssh_is_configured_for_a_node_by_name(
    run: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("system-1", "--ssh-config", "-") == 0
    assert (
        "Host esm2-eks-system-1\n" in (block := capsys.readouterr().out)
        and "User ec2-user\n" in block
    )
    with pytest.raises(
        ValueError, match=r"name a node, .* of esm2-eks are system-1, workers-1, workers-2"
    ):
        run("--ssh-config", "-")


def test_nodes_are_listed(run: Connect, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "system-1",
        "workers-1",
        "workers-2",
    ]


def test_slurm_has_no_kubeconfig(run: Connect) -> None:
    with pytest.raises(ValueError, match="a Slurm cluster has no Kubernetes"):
        run("--kubeconfig", "-", file="clusters/slurm.yaml")
