"""The app as people start it: by the real command line, without an account."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.golden.normalised import GOLDEN, normalised
from tests.local_aws.deployment import LocalAws
from tests.stacks.endpoints import GIVEN
from tests.stacks.synthesized import EKS_STACKS, REPOSITORY, STACKS

NOBODY = LocalAws("http://localhost:9")
"""Whatever the command line would ask of AWS finds a closed port."""


def cdk(*arguments: str, succeeds: bool = True) -> str:
    """What the command line prints, in the repository itself."""
    return NOBODY.cdk(*arguments, cwd=REPOSITORY, succeeds=succeeds)


def test_synth_writes_the_golden_templates(tmp_path: Path) -> None:
    """What the tests look at is what the command line makes, flags of cdk.json and all."""
    cdk("synth", "--quiet", "--output", str(tmp_path), "-c", "cluster=clusters/slurm-p5.yaml")
    for stack in STACKS:
        template = json.loads((tmp_path / f"{stack}.template.json").read_text())
        assert normalised(template) == (GOLDEN / "slurm-p5" / f"{stack}.json").read_text()


def test_without_a_file_both_kinds_of_clusters_are_there() -> None:
    """So that both deploy commands work as typed."""
    listed = [line.split(" ")[0] for line in cdk("list").splitlines() if "Stack (" in line]
    assert listed == [*STACKS, *EKS_STACKS]


@pytest.fixture
def no_charts(tmp_path: Path) -> Path:
    """A checkout on which nobody has run `make charts`."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for entry in REPOSITORY.iterdir():
        if entry.name not in (".charts", "cdk.out", ".git"):
            (folder / entry.name).symlink_to(entry)
    # Whose places say where modules and the cache are.
    (folder / "app.py").unlink()
    shutil.copy(REPOSITORY / "app.py", folder)
    (folder / "config").unlink()
    shutil.copytree(REPOSITORY / "config", folder / "config", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_missing_charts_stop_the_eks_cluster_alone(no_charts: Path) -> None:
    output = NOBODY.cdk("synth", "EksHyperPodStack", "--quiet", cwd=no_charts, succeeds=False)
    assert "Traceback" not in output
    assert f"chart hyperpod is not in {no_charts}/.charts; run make charts" in output
    assert "make charts" not in NOBODY.cdk("synth", "SlurmHyperPodStack", "--quiet", cwd=no_charts)


@pytest.mark.parametrize(
    ("cluster", "stack"),
    [("clusters/eks-p5.yaml", "EksHyperPodStack"), ("clusters/slurm-p5.yaml", "SlurmHyperPodStack")],
)
def test_make_names_the_stack_of_the_cluster(cluster: str, stack: str) -> None:
    for target, stacks in (("deploy", "--all"), ("destroy", stack)):
        done = subprocess.run(
            ["make", "--dry-run", target, f"CLUSTER={cluster}"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"--context cluster={cluster} {target} {stacks}" in done.stdout


def test_bad_file_ends_with_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    text = (REPOSITORY / "clusters" / "slurm.yaml").read_text()
    text = text.replace("capacity_gib: 1200", "capacity_gib: 1000")
    path.write_text(text.replace("num_instances: 1", "num_instances: 2"))
    output = cdk("synth", "--quiet", "-c", f"cluster={path}", succeeds=False)
    assert "Traceback" not in output
    faults = [line for line in output.splitlines() if line.startswith(f"{path}: ")]
    assert len(faults) == 2
    assert any("storage.lustre.capacity_gib: got 1000" in fault for fault in faults)


def test_missing_file_is_named() -> None:
    output = cdk("synth", "--quiet", "-c", "cluster=clusters/none.yaml", succeeds=False)
    assert "Traceback" not in output
    assert "clusters/none.yaml" in output


def test_app_is_short() -> None:
    assert len((REPOSITORY / "app.py").read_text().splitlines()) < 50


def test_command_line_is_pinned_without_a_registry() -> None:
    version = json.loads((REPOSITORY / "package.json").read_text())["devDependencies"]["aws-cdk"]
    text = (REPOSITORY / "package-lock.json").read_text()
    lock = json.loads(text)["packages"]["node_modules/aws-cdk"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version) and lock["version"] == version
    assert lock["integrity"].startswith("sha512-")
    assert "resolved" not in lock and "://" not in text


def test_package_json_names_the_licence_of_the_project() -> None:
    assert (REPOSITORY / "LICENSE").read_text().startswith("MIT No Attribution\n")
    lock = json.loads((REPOSITORY / "package-lock.json").read_text())["packages"][""]
    assert json.loads((REPOSITORY / "package.json").read_text())["license"] == lock["license"] == "MIT-0"


def test_cdk_json_holds_flags_alone() -> None:
    settings = json.loads((REPOSITORY / "cdk.json").read_text())
    assert settings["app"] == ".venv/bin/python app.py"
    assert all(name.startswith("@aws-cdk") for name in settings["context"])
    # Storage must not go while a cluster uses it. CloudFormation guards exports, but not weak references.
    assert settings["context"]["@aws-cdk/core:defaultCrossStackReferences"] == "strong"


def test_an_endpoint_is_deployed_alone_with_what_is_given() -> None:
    given = [argument for key, value in GIVEN.items() for argument in ("-c", f"{key}={value}")]
    output = cdk("list", "-c", "endpoint=endpoints/esm2.yaml", *given)
    assert [line.split(" ")[0] for line in output.splitlines() if "Stack (" in line] == ["EndpointStack"]
    output = cdk("list", "-c", "endpoint=endpoints/esm2.yaml", succeeds=False)
    assert "Traceback" not in output
    assert "endpoints/esm2.yaml: image: got nothing" in output
