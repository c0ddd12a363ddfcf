"""Packages that the image adds to its base: all that are needed, and no others."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
HASH = "    --hash=sha256:" + "0" * 64 + "\n"
LOCK = "".join(f"{pin} \\\n{HASH}" for pin in ("alpha==1.0", "beta==2.0", "gamma==3.0"))
VERSIONS = {"base": {"torch": "2.13.0a0+x"}, "replaced_python_packages": ["gamma"]}


class Site:
    """A folder of packages that are nothing but metadata."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        (folder / "lock").write_text(LOCK)
        (folder / "versions").write_text(json.dumps(VERSIONS))
        (folder / "requirements.in").write_text("# ours\nalpha>=1\n")
        self.install("torch", "2.13.0a0+x")

    def install(self, name: str, version: str, *requires: str) -> None:
        for old in self.site.glob(f"{name}-*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        folder = self.site / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        lines = [f"Requires-Dist: {requirement}" for requirement in requires]
        text = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines])
        (folder / "METADATA").write_text(f"{text}\n")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        files = {"lacking": ["to-install", "shipped"], "check": ["requirements.in", "shipped"]}[
            command
        ]
        paths = [str(self.folder / name) for name in ("lock", "versions", *files)]
        script = str(REPOSITORY / "docker/python_lock.py")
        whole = [sys.executable, script, command, *paths, "--site", str(self.site)]
        return subprocess.run(whole, capture_output=True, text=True, check=False)

    def lacking(self) -> str:
        done = self.run("lacking")
        assert done.returncode == 0, done.stderr
        return (self.folder / "to-install").read_text()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_only_what_is_lacking_is_installed_with_its_hash(site: Site) -> None:
    site.install("alpha", "1.5")
    assert site.lacking() == "".join(f"{pin} \\\n{HASH}" for pin in ("beta==2.0", "gamma==3.0"))


def test_replaced_packages_are_taken_from_the_lock(site: Site) -> None:
    site.install("gamma", "0.9")
    assert "gamma==3.0" in site.lacking()


def installed(site: Site) -> Site:
    """Create an environment as after pip, without faults."""
    site.lacking()
    site.install(
        "alpha", "1.0", "beta>=2", "absent; extra == 'more'", "absent; python_version < '3'"
    )
    site.install("beta", "2.0")
    site.install("gamma", "3.0")
    return site


def test_what_fits_passes(site: Site) -> None:
    done = installed(site).run("check")
    assert done.returncode == 0, done.stderr


def remove_beta(site: Site) -> None:
    (next(site.site.glob("beta-*")) / "METADATA").unlink()
    next(site.site.glob("beta-*")).rmdir()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda site: site.install("torch", "2.14.0"),
            "torch: the base shipped 2.13.0a0+x, now 2.14.0",
        ),
        (remove_beta, "beta: locked, not installed"),
        (lambda site: site.install("beta", "1.0"), "alpha 1.0 needs beta>=2, found 1.0"),
        (lambda site: site.install("alpha", "0.5"), "requirements.in needs alpha>=1, found 0.5"),
    ],
)
def test_what_does_not_fit_is_said(site: Site, change: Any, problem: str) -> None:
    change(installed(site))
    done = site.run("check")
    assert done.returncode == 1
    assert problem in done.stderr


def test_lock_without_hashes_is_refused(site: Site) -> None:
    (site.folder / "lock").write_text("alpha==1.0\n")
    done = site.run("lacking")
    assert done.returncode != 0
    assert "lock: no exact version or no hash: alpha==1.0" in done.stderr


# The shipped files: ours, and that of BioNeMo's image.
FOLDERS = ("docker", "docker/bionemo")


def lock(folder: str = "docker") -> dict[str, str]:
    text = (REPOSITORY / folder / "requirements.lock").read_text()
    return {
        str(canonicalize_name(n)): v
        for n, v in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)
    }


def direct(folder: str = "docker") -> list[Requirement]:
    lines = (REPOSITORY / folder / "requirements.in").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def of_hyperpod() -> dict[str, Requirement]:
    """HyperPod's packages by the names of their modules, by their own lock."""
    text = (REPOSITORY / "docker/agent.lock").read_text()
    pins = re.findall(r"^([\w.-]+==\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    return {name.name.replace("-", "_"): name for name in map(Requirement, pins)}


def test_hyperpods_packages_are_the_ones_that_are_tested() -> None:
    assert set(of_hyperpod()) == {"amzn_sagemaker_checkpointing", "hyperpod_elastic_agent"}
    pins = (REPOSITORY / "environments/hyperpod.txt").read_text().splitlines()
    assert {str(pin) for pin in of_hyperpod().values()} <= set(pins)


@pytest.mark.parametrize("folder", FOLDERS)
def test_lock_has_all_requirements_and_never_torch(folder: str) -> None:
    locked = lock(folder)
    for requirement in direct(folder):
        assert requirement.specifier.contains(locked[str(canonicalize_name(requirement.name))]), (
            requirement
        )
    assert not {name for name in locked if re.match(r"torch|triton|nvidia|cuda", name)}


def pins() -> dict[str, str]:
    """Versions of requirements.txt by canonical name."""
    text = (REPOSITORY / "requirements.txt").read_text()
    found = re.findall(r"^([\w.-]+)(?:\[\w+\])?==(\S+)", text, re.MULTILINE)
    return {str(canonicalize_name(name)): version for name, version in found}


def test_developers_lock_holds_all_pins_but_torch() -> None:
    wanted = pins()
    locked = lock(".")
    del wanted["torch"]
    assert wanted == {name: locked.get(name) for name in wanted}, "run: make lock"
    assert "torch" not in locked
    packages = re.split(r"\n(?=\S)", (REPOSITORY / "requirements.lock").read_text())
    assert not [package for package in packages if "--hash=sha256:" not in package]


@pytest.mark.parametrize("folder", FOLDERS)
def test_locked_versions_are_those_that_are_tested(folder: str) -> None:
    """The image trains with what the tests ran with."""
    locked = lock(folder)
    shared = {name: version for name, version in pins().items() if name in locked}
    assert len(shared) > 4
    assert shared == {name: locked[name] for name in shared}


def test_bionemos_image_keeps_its_own_packages() -> None:
    """Its transformers is the one that it was built with."""
    versions = json.loads((REPOSITORY / "docker/bionemo/versions.json").read_text())
    assert not versions["replaced_python_packages"]
    assert not {*lock("docker/bionemo")} & {"transformers", "peft", "tokenizers", "safetensors"}


def imported_by(path: Path) -> set[str]:
    """Top-level packages, wherever in the file they are imported."""
    found = list(ast.walk(ast.parse(path.read_text())))
    names = [name.name for node in found if isinstance(node, ast.Import) for name in node.names]
    names += [
        node.module or "" for node in found if isinstance(node, ast.ImportFrom) and not node.level
    ]
    return {name.partition(".")[0] for name in names}


def test_requirements_have_every_import_of_the_workload() -> None:
    names = {str(canonicalize_name(requirement.name)) for requirement in direct()}
    imported = {
        module for path in (REPOSITORY / "workloads").rglob("*.py") for module in imported_by(path)
    }
    distributions = {
        "yaml": "pyyaml",
        "mlflow": "mlflow-skinny",
        "botocore": "boto3",
        "huggingface_hub": "huggingface-hub",
        "prometheus_client": "prometheus-client",
        "sklearn": "scikit-learn",
    }
    hyperpods = {module: pin.name for module, pin in of_hyperpod().items()}
    distributions |= hyperpods
    # Triton comes with torch.
    of_the_base = {"torch", "torch_xla", "triton"}
    optional = {"argcomplete", "umap", "wandb"}
    third_party = imported - set(sys.stdlib_module_names) - {"seqlm"} - of_the_base - optional
    known = names | set(hyperpods.values())
    assert {distributions.get(module, module) for module in third_party} <= known
