"""python -m seqlm --version: from the code down to the network's libraries, on any machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seqlm.training.hardware import software_stack

REPOSITORY = Path(__file__).parents[3]


def efa(amazon: Path) -> Path:
    """Create the files of the EFA installer that the code reads."""
    files = {
        "efa_installed_packages": "# EFA installer version: 1.50.0\n# Debug packages installed: no\n",
        "efa/bin/fi_info": "#!/bin/sh\necho 'libfabric: 2.6.0amzn1.0'\necho 'libfabric api: 2.6'\n",
        "ofi-nccl/lib/libnccl-net-ofi.so": "\0ELF\0NET/OFI Initializing aws-ofi-nccl 1.21.1\0",
    }
    for name, text in files.items():
        (amazon / name).parent.mkdir(parents=True, exist_ok=True)
        (amazon / name).write_text(text)
        (amazon / name).chmod(0o755)
    return amazon


def test_stack_with_efa(tmp_path: Path) -> None:
    stack = software_stack(efa(tmp_path))
    assert stack["efa_installer"] == "1.50.0"
    assert stack["libfabric"] == "2.6.0amzn1.0"
    assert stack["aws_ofi_nccl"] == "1.21.1"
    assert stack["torch"] == torch.__version__


def test_stack_without_efa(tmp_path: Path) -> None:
    stack = software_stack(tmp_path)
    assert {name for name in ("efa_installer", "libfabric", "aws_ofi_nccl") if stack[name]} == set()


@pytest.mark.parametrize(
    "broken", ["efa_installed_packages", "efa/bin/fi_info", "ofi-nccl/lib/libnccl-net-ofi.so"]
)
def test_broken_part_does_not_hide_the_others(tmp_path: Path, broken: str) -> None:
    (efa(tmp_path) / broken).write_bytes(b"")
    stack = software_stack(tmp_path)
    names = ("efa_installer", "libfabric", "aws_ofi_nccl")
    assert len([name for name in names if stack[name] is None]) == 1


@pytest.mark.long
def test_command_prints_a_line_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_SHA", "c0ffee")
    monkeypatch.setenv("NCCL_NET_PLUGIN", "none")
    done = subprocess.run(
        [sys.executable, "-m", "seqlm", "--version"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    printed = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert printed["code"] == "c0ffee"
    assert printed["nccl_net_plugin"] == "none"
    assert set(printed) == set(software_stack())
