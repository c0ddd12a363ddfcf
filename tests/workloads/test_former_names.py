"""Former names end with one line that gives the new one; runs record the commit of the code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seqlm
from seqlm.runs.run_file import load_config, run_file_path
from seqlm.training.hardware import git_sha

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "workloads" / "seqlm"
PRINT_COMMITS = """
import os
from seqlm.training.hardware import git_sha
print(git_sha())
os.environ["GIT_SHA"] = "c0ffee"
print(git_sha())
"""
"""Outside an image, and as in one."""


def test_the_former_module_names_the_new_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workloads", "embed", "--help"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "error: python -m workloads is now: python -m seqlm embed --help\n"


@pytest.mark.parametrize(
    "former", ["workloads/esm2/configs/esm2_650m.yaml", "workloads/esmc/configs/esmc_6b.yaml"]
)
def test_a_former_run_file_names_the_new_one(former: str) -> None:
    name = Path(former).name
    with pytest.raises(
        ValueError, match=rf"there is no run file {former}; did you mean .*seqlm/configs/{name}"
    ):
        load_config(former)


def test_a_bundled_run_file_is_found_by_its_name() -> None:
    assert run_file_path("esm2_650m") == PACKAGE / "configs" / "esm2_650m.yaml"
    assert (
        run_file_path("membrane_sample")
        == PACKAGE / "configs" / "finetune" / "membrane_sample.yaml"
    )


def test_the_package_has_a_version_and_lazy_names() -> None:
    assert seqlm.__version__
    with pytest.raises(AttributeError, match="has no attribute 'lead'"):
        _ = seqlm.lead
    assert len(seqlm.sample_table()) == 5347


def test_a_run_records_the_commit_of_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.strip()
    monkeypatch.delenv("GIT_SHA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert git_sha() == head


def test_a_run_records_the_commit_of_an_image_and_none_of_an_installed_package(
    tmp_path: Path,
) -> None:
    installed = tmp_path / "repository/site-packages/seqlm"
    ignored = shutil.ignore_patterns("__pycache__", "sample")
    shutil.copytree(PACKAGE, installed, ignore=ignored)
    # Somebody else's repository around the package is not its own.
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "repository")], check=True)
    variables = {name: value for name, value in os.environ.items() if name != "GIT_SHA"}
    done = subprocess.run(
        [sys.executable, "-c", PRINT_COMMITS],
        cwd=tmp_path,
        env={**variables, "PYTHONPATH": str(installed.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["None", "c0ffee"]
