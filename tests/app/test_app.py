"""The app as people start it: by the real command line, without an account."""

from __future__ import annotations

import json
import re
from pathlib import Path

from stacks.remaining_costs import remaining_costs
from tests.golden.normalised import GOLDEN, normalised
from tests.local_aws.deployment import LocalAws
from tests.stacks.synthesized import REPOSITORY, STACKS, load

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


def test_destroy_says_what_still_bills() -> None:
    """Before the question whether to destroy, and of the small cluster when no file is named."""
    output = cdk("destroy", "SlurmHyperPodStack", succeeds=False)
    costs = ", ".join(remaining_costs(load("clusters/slurm.yaml")))
    line = f"esm2-slurm: once deployed, billed until `make teardown`: {costs}"
    assert line in output
    assert output.index(line) < output.index("irreversible")


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


def test_cdk_json_holds_flags_alone() -> None:
    settings = json.loads((REPOSITORY / "cdk.json").read_text())
    assert settings["app"] == ".venv/bin/python app.py"
    assert all(name.startswith("@aws-cdk") for name in settings["context"])
    # Storage must not go while a cluster uses it. CloudFormation guards exports, but not weak references.
    assert settings["context"]["@aws-cdk/core:defaultCrossStackReferences"] == "strong"
