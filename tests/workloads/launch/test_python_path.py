"""Child processes import the package of the process that starts them, whatever folder they work in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workloads.launch.slurm_stand_ins import REPOSITORY

CHILD = "import os, seqlm; os.chdir('/'); print(seqlm.__file__, os.environ.get('PYTHONPATH'))"
PARENT = f"""
import os, subprocess, sys
from seqlm.launch.python_path import hand_on_python_path

hand_on_python_path()
os.chdir("/")
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
"""
AGENT = f"""
import os
from seqlm.launch.torchrun import elastic_config, run_processes

meeting = {{"nproc_per_node": 1, "run_id": "1", "rdzv_endpoint": "localhost:0"}}
config = elastic_config(num_nodes=1, shutdown_timeout=60, **meeting)
raise SystemExit(run_processes(config, ["-c", {CHILD!r}]).status)
"""


def run(program: str, folder: Path, python_path: str | None) -> list[str]:
    """Run a program. Return its child's file of the package and ``PYTHONPATH``."""
    environment = {**os.environ, "PYTHONPATH": python_path or ""}
    if python_path is None:
        del environment["PYTHONPATH"]
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def source_tree(folder: Path, name: str) -> Path:
    """Make a folder from which Python imports the package, under another path than the installed one's."""
    (folder / name).mkdir(parents=True)
    (folder / name / "seqlm").symlink_to(REPOSITORY / "workloads/seqlm")
    return folder / name


def test_a_relative_path_is_handed_on_as_an_absolute_one(tmp_path: Path) -> None:
    source = source_tree(tmp_path, "workloads")
    package, python_path = run(PARENT, tmp_path, "workloads:other")
    assert package == f"{source}/seqlm/__init__.py"
    assert python_path == f"{source}:{tmp_path}/other"


def test_a_package_of_the_working_folder_is_handed_on(tmp_path: Path) -> None:
    source = source_tree(tmp_path, "workloads")
    package, python_path = run(PARENT, source, None)
    assert [package, python_path] == [f"{source}/seqlm/__init__.py", str(source)]


def test_an_installed_package_needs_no_path(tmp_path: Path) -> None:
    """The folder of all packages on PYTHONPATH would come before Python's own modules."""
    source = source_tree(tmp_path, "site-packages")
    program = f"import sys; sys.path.insert(0, {str(source)!r}); import seqlm.launch.python_path as path\n"
    program += "import os; path.hand_on_python_path(); print(path.SOURCE_ROOT, os.environ.get('PYTHONPATH'))"
    assert run(program, tmp_path, None) == [str(source), "None"]


@pytest.mark.long
def test_torchruns_processes_import_the_same_package(tmp_path: Path) -> None:
    source = source_tree(tmp_path, "workloads")
    package, python_path = run(AGENT, tmp_path, "workloads")
    assert [package, python_path] == [f"{source}/seqlm/__init__.py", str(source)]
