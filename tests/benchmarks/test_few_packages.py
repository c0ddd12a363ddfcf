"""Benchmarks and GPU tests run on machines that lack the packages of the infrastructure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MISSING = ("cryptography", "botocore", "boto3", "pydantic")
"""Packages that a GPU machine without a network may lack."""
PROGRAM = """
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

missing = set(sys.argv[1].split(","))


class FewPackages(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        is_missing = name.partition(".")[0] in missing
        return None if is_missing else super().find_spec(name, path, target)


sys.meta_path = [FewPackages if finder is PathFinder else finder for finder in sys.meta_path]

import pytest

for file in sorted(Path("benchmarks/stages").glob("*.py")):
    import_module(f"benchmarks.stages.{file.stem}")
found = [name for name in missing if name in sys.modules]
assert not found, found
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests/gpu"]))
"""


def test_benchmarks_and_gpu_tests_need_none_of_the_infrastructures_packages() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}/workloads:{REPOSITORY}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(MISSING)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("attention", "hygiene", "kernels", "memory", "model", "steps"):
        assert f"test_gpu_{name}.py" in done.stdout


def test_the_process_that_starts_all_others_imports_nothing_heavy() -> None:
    program = (
        "import sys, benchmarks.acceptance; "
        "print([name for name in ('torch', 'transformers', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}/workloads:{REPOSITORY}"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
