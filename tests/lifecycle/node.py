"""A node to try lifecycle scripts on: its own files, and commands that write down how they were called."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from node_setup.facts import NodeFacts
from node_setup.host import Finished, Host
from node_setup.node import Node
from node_setup.settings import Deployment, Settings, read_section

SCRIPTS = Path(__file__).parents[2] / "lifecycle" / "slurm"
SYSTEM_PATH = f"/usr/sbin:/usr/bin:/sbin:/bin:{Path(sys.executable).parent}"
ADDRESSES = {"controller": "10.0.0.10", "login": "10.0.0.20", "workers": "10.0.0.31"}
ROLES = {"controller": "controller", "login": "login", "workers": "worker"}

_try_run_for_real = Host.try_run
_STAND_IN = """#!/bin/bash
echo "{name} $*" >> "{calls}"
{body}
"""


def settings_document(**changes: Any) -> dict[str, Any]:
    """``settings.json`` of a cluster with one group of each role and every switch off."""
    groups = {
        name: {
            "role": role,
            "instance_type": "ml.g5.8xlarge" if role == "worker" else "ml.m5.4xlarge",
            "partition": "gpu" if role == "worker" else None,
            "num_gpus": 1 if role == "worker" else 0,
            "num_neuron_devices": 0,
            "num_efa_interfaces": 1 if role == "worker" else 0,
            "weight": None,
            "feature": None,
        }
        for name, role in ROLES.items()
    }
    return {
        "cluster_name": "esm2-slurm",
        "region": "us-west-2",
        "lustre_mount_path": "/fsx",
        "shared_path": changes.get("lustre_mount_path", "/fsx"),
        "bucket_mount_path": None,
        "lustre_efa": None,
        "home_mount_path": None,
        "instance_groups": groups,
        "groups": [],
        "users": [],
        "accounts": [],
        "proxy": {},
        "scheduling": None,
        "external_accounting": False,
        "container_storage": "unchanged",
        "pam_slurm_adopt": False,
        "metrics": False,
        "cloudwatch_agent": False,
        "health_check_prolog": False,
        "workload_code": False,
        "studio": None,
        "downloads": "internet",
        **changes,
    }


def deployment_document(**changes: Any) -> dict[str, Any]:
    bucket = "sagemaker-esm2-slurm-123456789012-us-west-2"
    return {
        "artifact_bucket": bucket,
        "data_bucket": None,
        "workload_s3_uri": f"s3://{bucket}/workloads/0123456789abcdef",
        "remote_write_url": "https://aps-workspaces.us-west-2.amazonaws.com/workspaces/ws-1/api/v1/remote_write",
        "mlflow": None,
        "studio": None,
        **changes,
    }


def resource_config() -> dict[str, Any]:
    """Write the platform's file, with one instance in each group."""
    groups = [
        {
            "Name": name,
            "InstanceType": "ml.m5.4xlarge",
            "Instances": [
                {
                    "InstanceName": f"{name}-1",
                    "InstanceId": f"i-{number:017x}",
                    "AgentIpAddress": f"172.16.0.{number}",
                    "CustomerIpAddress": address,
                    "InstanceLabel": "",
                }
            ],
        }
        for number, (name, address) in enumerate(ADDRESSES.items(), start=1)
    ]
    slurm = {"PrimaryControllerIp": ADDRESSES["controller"], "SecondaryControllerIps": None}
    return {"ClusterType": "Slurm", "SlurmConfig": slurm, "InstanceGroups": groups}


@dataclass
class StandIns:
    """Commands on PATH in front of the system's."""

    folder: Path
    path: str = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        self._calls = self.folder / "calls"
        self._functions: dict[str, Callable[[list[str]], int]] = {}
        self.path = f"{self.folder / 'bin'}:{SYSTEM_PATH}"

    def command(self, name: str, body: str = "exit 0") -> None:
        """Have a command do something else, in bash; ``$@`` are its arguments."""
        self._functions.pop(name, None)
        path = self.folder / "bin" / name
        path.write_text(_STAND_IN.format(name=name, calls=self._calls, body=body))
        path.chmod(0o755)

    def function(self, name: str, status_of: Callable[[list[str]], int]) -> None:
        """Have a command of steps be a function of its arguments, in this process; it prints as they do."""
        self._functions[name] = status_of

    def try_run(self, host: Host, *command: str | Path, **options: Any) -> Finished:
        """In place of the host's own: functions first."""
        name, *words = (str(word) for word in command)
        if name not in self._functions:
            return _try_run_for_real(host, *command, **options)
        with self._calls.open("a") as calls:
            print(name, *words, file=calls)
        with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
            status = self._functions[name](words)
        return Finished(status, output.getvalue(), errors.getvalue())

    @property
    def calls(self) -> list[str]:
        """Commands with their arguments, in the order in which they were called."""
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def forget_calls(self) -> None:
        self._calls.write_text("")


@dataclass(frozen=True)
class Result:
    status: int
    output: str


class Bundle:
    """File system below ``root``, and the scripts as HyperPod copies them from S3: without modes.

    Its list of steps is the test's own, so that these tests are about what runs the steps.
    """

    def __init__(self, folder: Path, steps: str, *, group: str = "login") -> None:
        self.root = folder / "root"
        self.folder = folder / "bundle"
        self.stand_ins = StandIns(folder / "stand_ins")
        shutil.copytree(SCRIPTS, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        for path in self.folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        (self.folder / "node_setup/steps/__init__.py").write_text(steps)
        (self.folder / "settings.json").write_text(json.dumps(settings_document()))
        (self.folder / "deployment.json").write_text(json.dumps(deployment_document()))
        self.write_resource_config(json.dumps(resource_config()))
        self.stand_ins.command(
            "hostname",
            f'[[ "$1" == --short ]] && echo ip-node || echo "172.17.0.1 {ADDRESSES[group]}"',
        )
        self.stand_ins.command("sleep")

    def write_resource_config(self, text: str) -> None:
        path = self.root / "opt/ml/config/resource_config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, stdout: IO[str] | int = subprocess.PIPE) -> Result:
        """Run the script as HyperPod does: with the interpreter, from another folder."""
        done = subprocess.run(
            ["/bin/bash", str(self.folder / "on_init_complete.sh")],
            cwd="/",
            env={"PATH": self.stand_ins.path, "DESTDIR": str(self.root), "LIFECYCLE_PATIENCE": "0"},
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return Result(done.returncode, done.stdout)

    @property
    def log(self) -> str:
        return (self.root / "var/log/provision/provisioning.log").read_text()


def node_of(folder: Path, group: str = "workers", **settings: Any) -> Node:
    """A node for calling a step by itself: files below ``folder/root``, no patience."""
    for name, document in (
        ("settings.json", settings_document(**settings)),
        ("deployment.json", deployment_document()),
    ):
        (folder / name).write_text(json.dumps(document))
    read = read_section(folder / "settings.json", Settings)
    facts = NodeFacts(
        group=group,
        role=read.instance_groups[group].role,
        hardware=read.instance_groups[group],
        instance_id="i-00000000000000001",
        address=ADDRESSES[group],
        host_name=f"ip-{ADDRESSES[group].replace('.', '-')}",
        controller_addresses=(ADDRESSES["controller"],),
    )
    (folder / "root").mkdir(exist_ok=True)
    return Node(
        host=Host(root=folder / "root", patience=0),
        facts=facts,
        settings=read,
        deployment=read_section(folder / "deployment.json", Deployment),
    )


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    """Stand-in commands for steps that the test calls by themselves."""
    commands = StandIns(tmp_path / "stand_ins")
    monkeypatch.setenv("PATH", commands.path)
    monkeypatch.setattr(
        Host,
        "try_run",
        lambda host, *command, **options: commands.try_run(host, *command, **options),
    )
    return commands
