"""The wheel contains ``seqlm`` alone, its ranges contain the pins, and its command embeds."""

from __future__ import annotations

import ast
import re
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement

from tests.package import REPOSITORY, Package, installed_package
from tests.workloads.proteins.tiny_models import save_tiny_model

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
RANGES = [
    Requirement(text) for listed in (PROJECT["dependencies"], *EXTRAS.values()) for text in listed
]
WITHOUT_PIN = {"umap-learn"}
"""Packages that no test needs; they bring a compiler."""
OF_IMAGES = {"torch_xla", "hyperpod_elastic_agent", "amzn_sagemaker_checkpointing", "triton"}
"""Packages of images for a cluster."""
BY_OTHERS = {"urllib3": "requests", "botocore": "boto3", "tokenizers": "transformers"}
"""Packages that others always bring."""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_ranges_contain_the_pins() -> None:
    lines = (REPOSITORY / "requirements.txt").read_text().splitlines()
    pins = dict(line.partition("==")[::2] for line in lines if "==" in line)
    known = {normalized(name): version for name, version in pins.items()}
    missing = {one.name for one in RANGES if normalized(one.name) not in known}
    assert missing == WITHOUT_PIN
    outside = [
        one
        for one in RANGES
        if one.name not in missing and known[normalized(one.name)] not in one.specifier
    ]
    assert not outside
    floors = {one.name: str(one.specifier) for one in RANGES}
    assert floors["torch"] == ">=2.11" and floors["transformers"] == ">=5.17"
    assert all(str(one.specifier).startswith(">=") for one in RANGES)


def test_every_import_belongs_to_a_dependency() -> None:
    owners = packages_distributions()
    declared = {normalized(one.name) for one in RANGES}
    undeclared = set[str]()
    for file in (REPOSITORY / "workloads").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            for top in {name.partition(".")[0] for name in names}:
                if top in sys.stdlib_module_names or top in {"seqlm", "umap", *OF_IMAGES}:
                    continue
                found = {
                    normalized(BY_OTHERS.get(owner, owner)) for owner in owners.get(top, [top])
                }
                undeclared |= {top} if not found & declared else set()
    assert not undeclared


@pytest.fixture(scope="module")
def installed() -> Package:
    return installed_package()


@pytest.mark.long
def test_the_wheel_has_workloads_alone_and_embeds(installed: Package, tmp_path: Path) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"seqlm", "seqlm-0.1.0.dist-info"}
    assert "seqlm/configs/esm2_650m.yaml" in names and "seqlm/configs/run.schema.json" in names
    [sdist] = installed.archives.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert tops == {"workloads", "README.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}

    (tmp_path / "a.fasta").write_text(">a\nMKTAYIAKQRQISFVKSHFSRQ\n>b\nMKVLAGGW\n")
    save_tiny_model(tmp_path / "model")
    command = [
        "embed",
        "a.fasta",
        "--model",
        "model",
        "--output",
        "a.parquet",
        "train.precision=fp32",
    ]
    done = installed.run("seqlm", *command, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["id"].to_pylist() == ["a", "b"]
    program = "import numpy as np, seqlm.api as api; m = api.load('model', precision='fp32')\n"
    program += (
        "np.save('a.npy', m.embed(['MKTAYIAKQRQISFVKSHFSRQ', 'MKVLAGGW'])); print(api.__file__)"
    )
    done = installed.run("python", "-c", program, folder=tmp_path)
    assert done.stdout.startswith(str(installed.bin.parent)), done
    np.testing.assert_allclose(
        np.load(tmp_path / "a.npy"), table["embedding"].to_pylist(), atol=1e-6
    )


@pytest.mark.long
def test_the_shell_completes_subcommands_and_options(installed: Package, tmp_path: Path) -> None:
    """Call the program as argcomplete's shell function does."""

    def completions(line: str) -> set[str]:
        answer = tmp_path / "answer"
        variables = f"_ARGCOMPLETE=1 _ARGCOMPLETE_STDOUT_FILENAME={answer} COMP_POINT={len(line)}"
        call = f"{variables} COMP_LINE='{line}' {installed.bin}/seqlm"
        done = installed.run("python", "-c", f"import os; os.system({call!r})", folder=tmp_path)
        assert not done.stderr
        return {word.strip() for word in answer.read_text().split("\v")}

    assert {"scorecard", "serve"} == completions("seqlm s")
    assert "--output" in completions("seqlm embed --o")
