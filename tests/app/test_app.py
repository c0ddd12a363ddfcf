"""The app as people start it: by the real command line, without an account."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from aws_cdk import App

import app
from tests.golden.normalised import GOLDEN, normalised
from tests.local_aws.deployment import LocalAws, put_chart
from tests.stacks.endpoints import GIVEN
from tests.stacks.synthesized import EKS_STACKS, REPOSITORY, STACKS

NOBODY = LocalAws("http://localhost:9")
"""Whatever the command line would ask of AWS finds a closed port."""


@pytest.fixture
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkout without charts."""
    folder = tmp_path_factory.mktemp("app") / "checkout"
    folder.mkdir()
    for entry in REPOSITORY.iterdir():
        if entry.name not in (".charts", "cdk.out", ".git", "app.py", "config"):
            (folder / entry.name).symlink_to(entry)
    # Their places say where modules and the cache are.
    shutil.copy(REPOSITORY / "app.py", folder)
    shutil.copytree(
        REPOSITORY / "config", folder / "config", ignore=shutil.ignore_patterns("__pycache__")
    )
    return folder


@pytest.mark.long
def test_without_the_charts_the_eks_cluster_alone_is_refused(
    checkout: Path, tmp_path: Path
) -> None:
    # The test below applies the CDK's own rules, whose engine takes half of the time.
    settings = checkout / "cdk.json"
    text = settings.read_text().replace('"app": "', '"app": "CDK_VALIDATION=false ')
    settings.unlink()
    settings.write_text(text)
    output = NOBODY.cdk(
        "synth",
        "EksHyperPodStack",
        "--quiet",
        "--output",
        str(tmp_path),
        cwd=checkout,
        succeeds=False,
    )
    assert "Traceback" not in output
    assert f"chart hyperpod is not in {checkout}/.charts; run make charts" in output
    made = ("--app", str(tmp_path))
    for command in (("list",), ("synth", "SlurmHyperPodStack", "--quiet")):
        assert "make charts" not in NOBODY.cdk(*command, *made, cwd=checkout)
    assert (tmp_path / "EksStorageStack.template.json").exists()
    assert not (tmp_path / "EksHyperPodStack.template.json").exists()
    for command in (("synth",), ("diff",), ("deploy", "--ignore-errors")):
        NOBODY.cdk(*command, "EksHyperPodStack", *made, cwd=checkout, succeeds=False)


def test_the_command_line_makes_the_golden_templates(checkout: Path, tmp_path: Path) -> None:
    """Both kinds of clusters are there unasked."""
    put_chart(checkout / ".charts")
    NOBODY.cdk("synth", "--quiet", "--output", str(tmp_path), cwd=checkout)
    made = ("--app", str(tmp_path))
    listed = [line.split(" ")[0] for line in NOBODY.cdk("list", *made, cwd=checkout).splitlines()]
    assert [stack for stack in listed if stack.endswith("Stack")] == [*STACKS, *EKS_STACKS]
    for stack in (*STACKS, *EKS_STACKS):
        template = json.loads((tmp_path / f"{stack}.template.json").read_text())
        golden = GOLDEN / ("slurm" if stack in STACKS else "eks") / f"{stack}.json"
        assert normalised(template) == golden.read_text()


@pytest.mark.parametrize(
    ("cluster", "stack"),
    [
        ("clusters/eks-p5.yaml", "EksHyperPodStack"),
        ("clusters/slurm-p5.yaml", "SlurmHyperPodStack"),
    ],
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
        assert f"-m tools.stacks.deploy --cluster {cluster} {target} {stacks}" in done.stdout


def run_app(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **context: str | list[str]) -> Path:
    """Run app.py in this process with what ``--context`` gives; the folder of the cloud assembly."""
    settings = json.loads((REPOSITORY / "cdk.json").read_text())["context"]
    made = App(context=settings | context, outdir=str(tmp_path / "out"), analytics_reporting=False)
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(app, "App", lambda: made)
    app.main()
    return tmp_path / "out"


def test_bad_file_ends_with_its_faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    text = (REPOSITORY / "clusters" / "slurm.yaml").read_text()
    text = text.replace("capacity_gib: 1200", "capacity_gib: 1000")
    path.write_text(text.replace("num_instances: 1", "num_instances: 2"))
    with pytest.raises(SystemExit) as ended:
        run_app(monkeypatch, tmp_path, cluster=str(path))
    first, *faults = str(ended.value).splitlines()
    assert first == f"{path}: 2 mistakes" and len(faults) == 2
    assert any(
        "storage.lustre.capacity_gib: " in fault and "got 1000;" in fault for fault in faults
    )


def test_only_commands_that_need_templates_of_eks_fetch_its_chart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(app, "bring_missing", lambda cluster: fetched.append(cluster.name))
    monkeypatch.setattr(app, "add_stacks", lambda *_: None)
    for cluster, stacks, expected in (
        ("eks", ["**"], ["esm2-eks"]),
        ("eks", [], []),  # list, destroy
        ("slurm", ["**"], []),
    ):
        fetched.clear()
        run_app(
            monkeypatch,
            tmp_path,
            **{"cluster": f"clusters/{cluster}.yaml", app.NEEDS_TEMPLATES: stacks},
        )
        assert fetched == expected
    run_app(monkeypatch, tmp_path, cluster="clusters/eks.yaml")  # without the command line
    assert fetched == []


def test_missing_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"clusters/none\.yaml"):
        run_app(monkeypatch, tmp_path, cluster="clusters/none.yaml")


def test_an_endpoint_is_deployed_alone_with_what_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"endpoints/esm2\.yaml: 2 mistakes\n  image: got nothing"):
        run_app(monkeypatch, tmp_path / "refused", endpoint="endpoints/esm2.yaml")
    made = run_app(monkeypatch, tmp_path, endpoint="endpoints/esm2.yaml", **GIVEN)
    assert [path.name for path in made.glob("*.template.json")] == ["EndpointStack.template.json"]


def test_app_is_short() -> None:
    assert len((REPOSITORY / "app.py").read_text().splitlines()) < 90


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
    assert (
        json.loads((REPOSITORY / "package.json").read_text())["license"]
        == lock["license"]
        == "MIT-0"
    )


def test_cdk_json_holds_flags_alone() -> None:
    settings = json.loads((REPOSITORY / "cdk.json").read_text())
    assert settings["app"] == ".venv/bin/python app.py"
    assert all(name.startswith("@aws-cdk") for name in settings["context"])
    # Storage must not go while a cluster uses it. CloudFormation guards exports, but not weak references.
    assert settings["context"]["@aws-cdk/core:defaultCrossStackReferences"] == "strong"
