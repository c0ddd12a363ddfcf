"""Templates and nodes' scripts, as other people's rules see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_s3 as s3

from stacks.cluster_stacks import add_checks, add_stacks
from tests.stacks.base_templates import base_template_files
from tests.stacks.eks_variants import EKS_EVERY_OPTION
from tests.stacks.endpoints import ENDPOINT_FILES, endpoint_assembly
from tests.stacks.synthesized import REPOSITORY, assembly, load, new_app, synthesize
from tests.stacks.variants import EVERY_OPTION, EXISTING_VPC

BIN = Path(sys.executable).parent
CHECKOV = REPOSITORY / ".venv-checkov" / "bin" / "checkov"
UNCOLLECTED = (
    "import gc, runpy, sys; gc.disable(); del sys.argv[0]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""Program that runs another one without garbage collection, which takes a tenth of its time or more."""
TIMEOUT_SECONDS = 900
"""One minute of processor time, on cores that other tests may hold."""


@cache
def assemblies() -> tuple[Path, ...]:
    """The smallest clusters, those with every option, and other networks, accelerators and endpoints."""
    return (
        *(assembly(f"clusters/{name}.yaml") for name in ("slurm", "eks", "eks-trn2")),
        *(endpoint_assembly(file) for file in ENDPOINT_FILES),
        synthesize(EVERY_OPTION),
        synthesize(EXISTING_VPC),
        synthesize(EKS_EVERY_OPTION),
    )


def template_files() -> list[Path]:
    return [path for folder in assemblies() for path in sorted(folder.glob("*Stack.template.json"))]


def uncollected(program: Path) -> list[str | Path]:
    """Return the command of a program of a Python environment, without garbage collection."""
    return [program.with_name("python"), "-c", UNCOLLECTED, program]


def is_of_trainium2(template: Path) -> bool:
    return template.parent == assembly("clusters/eks-trn2.yaml")


@pytest.mark.long
@pytest.mark.parametrize(
    ("region", "is_trainium2"), [("us-east-1", False), ("us-east-2", True)], ids=["most", "trn2"]
)
def test_cfn_lint_finds_nothing(region: str, is_trainium2: bool) -> None:
    """Check with the lists of a region that has all types of its clusters; us-east-1 lacks trn2."""
    found = [template for template in template_files() if is_of_trainium2(template) == is_trainium2]
    if not is_trainium2:
        found += base_template_files("closed", "existing", "destroyed")
    done = subprocess.run(
        [*uncollected(BIN / "cfn-lint"), "--regions", region, "--", *found],
        cwd=REPOSITORY,  # whose .cfnlintrc.yaml says what is ignored, and why
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_cdk_nag_is_attached() -> None:
    """Synthesis raises on a finding, which is why every other test passes only without any."""
    app = new_app()
    add_stacks(app, load("clusters/slurm.yaml"))
    add_checks(app)
    s3.Bucket(Stack(app, "Careless"), "Bucket", removal_policy=RemovalPolicy.DESTROY)
    with pytest.raises(RuntimeError, match="AwsSolutions-S1"):
        app.synth()


@cache
def checkov_findings() -> set[str]:
    """Ids of all failed checks, with nothing skipped."""
    if not CHECKOV.exists():
        pytest.fail(
            f"checkov's own environment is missing: `make {CHECKOV.parents[1].name}/.ready` makes it"
        )
    done = subprocess.run(
        [
            *uncollected(CHECKOV),
            "--framework=cloudformation",
            "--skip-download",
            "--output=json",
            "--file",
            # Trainium's templates hold what eks.yaml's do.
            *(template for template in template_files() if not is_of_trainium2(template)),
        ],
        cwd=assemblies()[0],  # away from the repository, whose .checkov.yaml it would read
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    assert report["summary"]["resource_count"] > 100
    return {check["check_id"] for check in report["results"]["failed_checks"]}


def skipped() -> set[str]:
    return set(yaml.safe_load((REPOSITORY / ".checkov.yaml").read_text())["skip-check"])


def test_make_test_all_brings_checkov() -> None:
    """Its environment is made, or made anew, before the tests are run."""
    done = subprocess.run(
        ["make", "--dry-run", "--what-if=environments/checkov.lock", "test-all"],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"]},  # without what an outer make hands on
        capture_output=True,
        text=True,
        check=True,
    )
    made = done.stdout.index("--requirement environments/checkov.lock")
    tested = done.stdout.index("-m pytest")
    assert made < tested


@pytest.mark.long
def test_checkov_finds_what_is_skipped_and_nothing_else() -> None:
    found = checkov_findings()
    assert found - skipped() == set() and skipped() - found == set()


def test_every_skip_has_its_reason() -> None:
    """A comment before its group of checks, and the check's subject behind its id."""
    lines = (REPOSITORY / ".checkov.yaml").read_text().partition("skip-check:\n")[2].splitlines()
    assert lines[0].lstrip().startswith("#")
    for line in lines:
        if line.lstrip().startswith("- "):
            assert line.partition("  #")[2].strip(), line


def test_shellcheck_finds_nothing() -> None:
    scripts = sorted((REPOSITORY / "lifecycle").rglob("*.sh"))
    assert scripts
    done = subprocess.run(
        [BIN / "shellcheck", "--external-sources", *scripts], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
