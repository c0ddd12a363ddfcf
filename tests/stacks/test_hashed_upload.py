"""The prefix of an upload: the contents decide it, and nothing else."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, Aws, Stack
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk.assertions import Template

from config.content_hash import content_hash
from config.node_settings import node_settings_text
from constructs.storage.hashed_upload import HashedUpload, UploadedFiles, UploadTarget
from node_setup.settings import Deployment, read_section
from tests.stacks.intrinsics import ACCOUNT, Evaluator
from tests.stacks.synthesized import (
    CLUSTER_FILES,
    REPOSITORY,
    assembly,
    load,
    read_templates,
    resources,
    synthesize,
    templates,
)


def folder_with(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


FILES = {"run.sh": b"echo\n", "lib/a.py": b"a\n", "lib/b.py": b"b\n"}


def test_order_modes_times_and_place_do_not_count(tmp_path: Path) -> None:
    one = folder_with(tmp_path / "one", FILES)
    other = folder_with(tmp_path / "other", dict(reversed(FILES.items())))
    (other / "run.sh").chmod(0o700)
    os.utime(other / "lib/a.py", (0, 0))
    folder_with(other, {"__pycache__/a.pyc": b"x", "lib/__pycache__/b.pyc": b"y"})
    assert content_hash(one, {}) == content_hash(other, {})


def test_hash_is_the_same_on_every_machine(tmp_path: Path) -> None:
    assert (
        content_hash(folder_with(tmp_path, FILES), {"settings.env": "A=1\n"}) == "6e63185b6a4dfebc"
    )


@pytest.mark.parametrize(
    "files",
    [
        FILES | {"run.sh": b"echo \n"},
        FILES | {"run.sh": b"echo\r\n"},
        {"start.sh": FILES["run.sh"]} | {name: FILES[name] for name in ("lib/a.py", "lib/b.py")},
        {"run.sh": FILES["run.sh"], "lib/a.py": b"b\n", "lib/b.py": b"a\n"},
        FILES | {"empty": b""},
    ],
    ids=["content", "line ends", "name", "contents exchanged", "one more"],
)
def test_contents_and_names_count(tmp_path: Path, files: dict[str, bytes]) -> None:
    one = folder_with(tmp_path / "one", FILES)
    other = folder_with(tmp_path / "other", files)
    assert content_hash(one, {}) != content_hash(other, {})


def test_extra_files_count_like_the_folder_s(tmp_path: Path) -> None:
    whole = folder_with(tmp_path / "whole", FILES)
    rest = folder_with(tmp_path / "rest", {name: FILES[name] for name in ("run.sh", "lib/a.py")})
    assert content_hash(whole, {}) == content_hash(rest, {"lib/b.py": "b\n"})


def upload_of(folder: Path, **files: dict[str, str]) -> tuple[str, list[dict[str, Any]]]:
    """Prefix and markers of an upload."""
    stack = Stack(App(analytics_reporting=False), "Stack")
    log = logs.CfnLogGroup(stack, "Log")
    bucket = s3.Bucket(stack, "Bucket", bucket_name="artifacts")
    upload = HashedUpload(
        stack,
        "Upload",
        target=UploadTarget(bucket, key=None, log=log),
        prefix="scripts",
        files=UploadedFiles(folder, **files),
    )
    (found,) = resources(
        Template.from_stack(stack).to_json(), "Custom::CDKBucketDeployment"
    ).values()
    prefix = found["Properties"]["DestinationBucketKeyPrefix"]
    assert upload.s3_uri == f"s3://artifacts/{prefix}"
    return prefix, found["Properties"]["SourceMarkers"]


def test_what_the_deployment_knows_is_no_part_of_the_hash(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, FILES)
    settings = {"settings.json": "{}"}
    usual, _ = upload_of(folder, extra=settings, deployment={"deployment.json": "1"})
    other = {"deployment.json": f"{Aws.ACCOUNT_ID}, {Aws.STACK_NAME}"}
    prefix, markers = upload_of(folder, extra=settings, deployment=other)
    assert prefix == usual
    assert markers[:-1] == [{}, {}]
    assert list(markers[-1].values()) == [{"Ref": "AWS::AccountId"}, {"Ref": "AWS::StackName"}]


def test_what_is_a_part_of_the_hash_has_no_value_of_the_deployment(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        upload_of(folder_with(tmp_path, FILES), extra={"settings.json": Aws.ACCOUNT_ID})


def uploaded_files(file: str) -> dict[str, Path]:
    folder = assembly(file)
    assets = json.loads((folder / "SlurmHyperPodStack.assets.json").read_text())["files"]
    return {
        path.relative_to(folder / asset["source"]["path"]).as_posix(): path
        for asset in assets.values()
        if asset["source"]["packaging"] == "zip" and (folder / asset["source"]["path"]).is_dir()
        for path in (folder / asset["source"]["path"]).rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_settings_scripts_and_code_are_what_is_uploaded(file: str) -> None:
    uploaded = uploaded_files(file)
    assert uploaded["settings.json"].read_text() == node_settings_text(load(file))
    scripts = REPOSITORY / "lifecycle" / "slurm"
    below = [
        path for path in scripts.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert any(path.parent.parent.parent == scripts for path in below)
    for script in below:
        assert uploaded[script.relative_to(scripts).as_posix()].read_bytes() == script.read_bytes()
    assert {"seqlm/commands/train.py", "seqlm/training/train.py"} <= set(uploaded)
    assert not [name for name in uploaded if "__pycache__" in name]


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_nodes_read_what_the_deployment_knows(file: str, tmp_path: Path) -> None:
    stack = templates(file)["SlurmHyperPodStack"]
    cluster = load(file)
    uploads = [
        upload["Properties"] for upload in resources(stack, "Custom::CDKBucketDeployment").values()
    ]
    prefixes = {
        folder: upload
        for upload in uploads
        for folder, slash, _ in [upload["DestinationBucketKeyPrefix"].partition("/")]
        if slash
    }
    *others, markers = Evaluator(templates(file), cluster.region)(
        prefixes["lifecycle"]["SourceMarkers"]
    )
    assert others == [{}, {}]
    text = uploaded_files(file)["deployment.json"].read_text()
    for marker, value in markers.items():
        text = text.replace(marker, value)
    path = tmp_path / "deployment.json"
    path.write_text(text)
    bucket = f"sagemaker-{cluster.name}-{ACCOUNT}-{cluster.region}"
    metrics = f"https://aps-workspaces.{cluster.region}.amazonaws.com/workspaces/ws-0123/api/v1/remote_write"
    told = read_section(path, Deployment)
    assert (told.mlflow is None) is (cluster.mlflow is None)
    if told.mlflow:
        assert ":mlflow-tracking-server/" in told.mlflow.tracking_uri
        assert told.mlflow.role_arn.startswith(f"arn:aws:iam::{ACCOUNT}:role/JobRole")
    assert replace(told, mlflow=None) == Deployment(
        artifact_bucket=bucket,
        data_bucket=None,
        workload_s3_uri=f"s3://{bucket}/{prefixes['workloads']['DestinationBucketKeyPrefix']}",
        remote_write_url=metrics,
        mlflow=None,
        studio=None,
    )


def test_a_setting_of_the_file_changes_the_scripts_prefix_alone() -> None:
    def prefixes(stacks: dict[str, dict]) -> list[str]:  # type: ignore[type-arg]
        uploads = resources(stacks["SlurmHyperPodStack"], "Custom::CDKBucketDeployment").values()
        found = sorted(upload["Properties"]["DestinationBucketKeyPrefix"] for upload in uploads)
        assert found[0] == "lifecycle"
        return found[1:]

    cluster = load("clusters/slurm.yaml", storage={"lustre": {"mount_path": "/lustre"}})
    other = prefixes(read_templates(synthesize(cluster)))
    usual = prefixes(templates("clusters/slurm.yaml"))
    assert other[0] != usual[0] and other[0].startswith("lifecycle/")
    assert other[1] == usual[1]


def test_scripts_have_unix_line_ends() -> None:
    """A carriage return in the first line makes a script that no node can run."""
    for script in (REPOSITORY / "lifecycle").rglob("*"):
        if script.is_file() and "__pycache__" not in script.parts:
            assert b"\r" not in script.read_bytes(), script
