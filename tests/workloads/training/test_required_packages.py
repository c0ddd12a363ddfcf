"""Every module imports, and a run trains and is evaluated, with nothing installed but the required packages.

They are hidden in processes of their own by ``hidden_packages/sitecustomize.py``, which stands for a machine
without them: what is not imported where it is used shows here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from seqlm.training.command_line import one_line_errors, require

REPOSITORY = Path(__file__).parents[3]
REQUIRED = (
    "torch",
    "transformers",
    "numpy",
    "pyarrow",
    "safetensors",
    "PyYAML",
    "tqdm",
    "matplotlib",
)
"""Packages that README.md names."""
LORA = ("peft", "bitsandbytes")
SERVING = ("starlette", "uvicorn")
MAPS = ("pandas",)
KERNELS = ("triton",)
"""Package that comes with torch's builds for GPUs, and not with those for CPUs."""
EXTRA = {
    "seqlm.training.adapters.adapted_linear": LORA,
    "seqlm.proteins.serving.app": SERVING,
    "seqlm.proteins.serving.heads": SERVING,
    **dict.fromkeys(
        (f"seqlm.proteins.explore.{name}" for name in ("columns", "command", "projection")), MAPS
    ),
    **dict.fromkeys(
        (
            f"seqlm.proteins.model.kernels.{name}"
            for name in ("attention_kernels", "attention_launch", "gelu_kernels")
        ),
        KERNELS,
    ),
}
"""Packages that modules of a single stage, or of GPUs, may need in addition."""
WITH_CLUSTER_FILES = ("benchmarks.growth", "benchmarks.derived", "benchmarks.report")
"""Modules that also read cluster files, or stand-ins of the tests, and so need the whole environment."""
IMPORT_ALL = """
import importlib, json, sys
missing, names = {}, sys.argv[1:]
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing[name] = error.name
print(json.dumps(missing))
"""
ONE_PROCESS = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
"""Environment that torchrun would set. Without it, commands of inference start processes of their own."""
RUN_ALL = """
import json, runpy, sys
stages, *names = sys.argv[1:]
for arguments in json.loads(stages):
    sys.argv = ["seqlm", *arguments]
    try:
        runpy.run_module("seqlm", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
sys.argv[1:] = names
"""
"""Stages; the names of modules that follow stay as arguments."""


def modules() -> list[str]:
    """All of both folders, by their names."""
    files = [
        path
        for folder in ("workloads/seqlm", "benchmarks")
        for path in (REPOSITORY / folder).rglob("*.py")
    ]
    roots = {"workloads": REPOSITORY / "workloads", "benchmarks": REPOSITORY}
    inside = [path.relative_to(roots[path.relative_to(REPOSITORY).parts[0]]) for path in files]
    names = (".".join(path.with_suffix("").parts) for path in inside)
    return sorted(
        name.removesuffix(".__init__") for name in names if not name.startswith(WITH_CLUSTER_FILES)
    )


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def with_requirements(names: Iterable[str]) -> set[str]:
    """Distributions with all that they require, as far as it is installed."""
    found = set[str]()
    waiting = list(names)
    while waiting:
        name = normalized(waiting.pop())
        if name in found:
            continue
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        for requirement in map(Requirement, requires):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


@cache
def owners_of_modules() -> Mapping[str, list[str]]:
    """Return the distributions of each module; reading their lists of files takes a second."""
    return packages_distributions()


def with_only(packages: Iterable[str]) -> dict[str, str]:
    """Environment of a process that finds these packages, those that they require, and no others."""
    distributions = with_requirements(packages)
    names = owners_of_modules().items()
    visible = {name for name, owners in names if distributions & set(map(normalized, owners))}
    folders = [Path(__file__).parent / "hidden_packages", REPOSITORY / "workloads", REPOSITORY]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "VISIBLE_PACKAGES": json.dumps(
            {"modules": sorted(visible), "distributions": sorted(distributions)}
        ),
    }


def python(*arguments: str, packages: Iterable[str] = REQUIRED) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, env=with_only(packages), capture_output=True, text=True
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "extra", [LORA, SERVING, MAPS, KERNELS], ids=["lora", "serving", "maps", "kernels"]
)
def test_modules_with_extra_packages_import_with_these(extra: tuple[str, ...]) -> None:
    chosen = [name for name in modules() if EXTRA.get(name, ()) == extra]
    assert chosen
    done = python("-c", IMPORT_ALL, *chosen, packages=[*REQUIRED, *extra])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}


@pytest.mark.long
def test_other_packages_are_hidden_from_child_processes_too() -> None:
    """Otherwise the other tests would prove nothing."""
    child = (
        "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import xxhash']))"
    )
    done = python("-c", child)
    assert done.returncode == 1 and "No module named 'xxhash'" in done.stderr
    assert python("-c", child, packages=[*REQUIRED, "xxhash"]).returncode == 0


@pytest.mark.long
def test_a_run_needs_no_other_packages_and_every_other_module_imports(
    run_file: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fasta = tmp_path / "proteins.fasta"
    fasta.write_text(">P1\nMKVLAGGW\n>P2\nMSTNPKPQRK\n")
    run = [
        "--config",
        str(run_file),
        "train.max_steps=2",
        "optim.warmup_steps=1",
        "tracking.mlflow=true",
    ]
    inference = [f"inference.input=[{fasta}]", f"inference.model={tmp_path}/runs/run/model"]
    stages = [["train", *run], ["evaluate", *run]]
    stages += [["report", str(tmp_path / "runs/run")]]
    stages += [[stage, *run, *inference] for stage in ("embed", "variants")]
    for name, value in ONE_PROCESS.items():
        monkeypatch.setenv(name, value)
    names = [name for name in modules() if name not in EXTRA]
    done = python("-c", RUN_ALL + IMPORT_ALL, json.dumps(stages), *names)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}
    assert done.stderr.count("MLflow at ") == 1 and "No module named 'mlflow'" in done.stderr
    assert (tmp_path / "runs/run/report.html").exists() and "model.safetensors" in os.listdir(
        tmp_path / "runs/run/model"
    )
    assert list(tmp_path.rglob("embeddings*.parquet")) and list(tmp_path.rglob("variants.csv"))


def test_a_missing_package_is_named_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised, one_line_errors():
        require("no_such_package")
    assert raised.value.code == 1
    said = capsys.readouterr().err
    assert (
        said.startswith("error: the package no_such_package is missing; install it")
        and said.count("\n") == 1
    )


def test_a_missing_module_of_a_package_that_is_there_is_a_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit), one_line_errors():
        import workloads.nowhere  # noqa: F401
    assert "ModuleNotFoundError: No module named 'workloads.nowhere'" in capsys.readouterr().err


@pytest.mark.long
def test_serving_names_what_it_misses() -> None:
    done = python("-m", "seqlm", "serve", "--model", "nowhere", packages=[*REQUIRED, "uvicorn"])
    assert (done.returncode, done.stdout) == (1, "")
    line = (
        "error: the package starlette is missing; install it (pip install starlette) and try again"
    )
    assert done.stderr.splitlines() == [line]
