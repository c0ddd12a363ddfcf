"""A pod's check of its node before training."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from seqlm.launch.pod_check import device_problems

REPOSITORY = Path(__file__).parents[3]
NODE = "hyperpod-i-0123"


def check(folder: Path, *, gpus: int = 0, nvidia_smi: str = "") -> subprocess.CompletedProcess[str]:
    """Run the check as the pod's container does, with a program in place of nvidia-smi."""
    programs = folder / "bin"
    programs.mkdir()
    if nvidia_smi:
        (programs / "nvidia-smi").write_text(f"#!/bin/bash\n{nvidia_smi}\n")
        (programs / "nvidia-smi").chmod(0o755)
    command = [sys.executable, "-m", "seqlm.launch.pod_check", f"--gpus={gpus}", "--neuron=0"]
    return subprocess.run(
        [*command, "--efa=0", f"--folder={folder}/fsx/esm2"],
        cwd=REPOSITORY,
        env={"PATH": f"{programs}:{os.environ['PATH']}", "NODE_NAME": NODE},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_good_node_has_the_folder_then(tmp_path: Path) -> None:
    done = check(tmp_path, gpus=2, nvidia_smi="echo 580.95; echo 580.95")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list((tmp_path / "fsx/esm2").iterdir())


@pytest.mark.parametrize(
    ("nvidia_smi", "problem"),
    [
        ("echo 580.95", "Kubernetes gives the job 2 GPUs there, nvidia-smi shows 1"),
        ("echo 'No devices were found'; exit 6", "nvidia-smi fails with 6: No devices were found"),
    ],
)
def test_a_bad_node_is_named_and_how_it_is_replaced(
    tmp_path: Path, nvidia_smi: str, problem: str
) -> None:
    done = check(tmp_path, gpus=2, nvidia_smi=nvidia_smi)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: node {NODE}: {problem}")
    assert (
        f"kubectl label node {NODE} sagemaker.amazonaws.com/node-health-status=Unsched"
        in done.stderr
    )


def test_a_file_system_that_takes_nothing_is_not_the_nodes_fault(tmp_path: Path) -> None:
    (tmp_path / "fsx").touch()
    done = check(tmp_path)
    assert done.returncode == 1 and "kubectl" not in done.stderr
    assert re.search(rf"node {NODE}: .*/fsx/esm2 cannot be made: Not a directory", done.stderr)


def test_efa_interfaces_are_counted(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"uverbs{number}").touch()
    assert device_problems(0, 0, 3, tmp_path) == []
    [problem] = device_problems(0, 0, 4, tmp_path)
    assert problem == f"Kubernetes gives the job 4 EFA interfaces there, {tmp_path} has 3"
