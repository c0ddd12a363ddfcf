"""Manifests as files, for kubectl and for hyp; the image of the commit; the token for EKS."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import jinja2
import jsonschema
import pytest
import yaml
from botocore.exceptions import ClientError

from seqlm.launch.kubernetes_job import config_map, job_manifest
from tests.job_schemas.validation import check
from tests.tools.jobs.kubernetes.eks_jobs_made import CLUSTERS, IMAGE, RUN, made, shipped
from tools.images import image_registry
from tools.images.source_revision import Revision, has_package
from tools.jobs import __main__ as jobs
from tools.jobs.kubernetes import image as eks_image
from tools.jobs.kubernetes.files import hyp_config, to_yaml, write_files
from tools.kubernetes.eks_token import token
from tools.kubernetes.kubectl import kubeconfig_of

DIGEST = IMAGE.partition("@")[2]
URI = IMAGE.partition("@")[0]
COMMIT = "c0ffee" * 6 + "c0ff"


def test_files_are_the_job_and_its_run_file(tmp_path: Path) -> None:
    job = made()
    lines = write_files(job, tmp_path / "job")
    found = {path.name: path.read_text() for path in (tmp_path / "job").iterdir()}
    assert yaml.safe_load(found["job.yaml"]) == job_manifest(job)
    assert yaml.safe_load(found["run.yaml"]) == config_map(job)
    assert "&id" not in found["job.yaml"]
    assert lines[-1].endswith("&& hyp create")


def test_hyp_renders_the_same_job(tmp_path: Path) -> None:
    """Render as its create command does: the template with all fields of config.yaml."""
    job = made(cluster=shipped("eks-p5"), team="proteins", priority="urgent")
    write_files(job, tmp_path / "job")
    values = yaml.safe_load((tmp_path / "job/config.yaml").read_text())
    template = jinja2.Template((tmp_path / "job/k8s.jinja").read_text())
    manifest = yaml.safe_load(template.render(**values))
    assert manifest == job_manifest(job)
    changed = yaml.safe_load(
        template.render(**values | {"image": "other@sha256:1", "max_retry": 3})
    )
    check(changed)
    spec = changed["spec"]["replicaSpecs"][0]["template"]["spec"]
    images = {container["image"] for container in [*spec["initContainers"], *spec["containers"]]}
    assert images == {"other@sha256:1"} and changed["spec"]["runPolicy"]["jobMaxRetryCount"] == 3


def test_hyps_own_schema_takes_its_config() -> None:
    """Return the schema of version 1.1, which hyperpod-pytorch-job-template 1.5.0 has."""
    schema = json.loads((Path(__file__).parents[3] / "job_schemas/hyp_config.json").read_text())
    values = hyp_config(made(cluster=shipped("eks-p5"), team="proteins", priority="urgent"))
    assert (values.pop("template"), values.pop("version")) == ("hyp-pytorch-job", "1.1")
    assert schema["additionalProperties"] is False
    # Not checked itself: memory's type is no type of JSON schema's.
    jsonschema.Draft202012Validator(schema).validate(values)
    assert values["node_count"] == 6
    near = {"preferred_topology": "topology.k8s.aws/network-node-layer-3"}
    values = hyp_config(made(cluster=shipped("eks-p5"), team="proteins", nodes="4-6", **near))
    jsonschema.Draft202012Validator(schema).validate(
        {name: value for name, value in values.items() if name not in ("template", "version")}
    )
    assert (values["node_count"], values["max_node_count"]) == (
        4,
        6,
    ) and near.items() <= values.items()


def test_kubeflow_has_nothing_for_hyp(tmp_path: Path) -> None:
    lines = write_files(made(cluster=shipped(training_operator="kubeflow")), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml", "run.yaml"]
    assert "hyp" not in lines[-1]


def test_files_of_another_job_are_not_overwritten(tmp_path: Path) -> None:
    write_files(made(), tmp_path)
    with pytest.raises(
        ValueError, match=r"--to: .* has job.yaml, run.yaml, config.yaml, k8s.jinja already"
    ):
        write_files(made(), tmp_path)


def test_writing_files_sends_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--config", str(RUN), "--image", IMAGE, "--cluster", str(CLUSTERS / "eks.yaml")]
    monkeypatch.setattr(
        sys, "argv", ["jobs", "submit", "train", *arguments, "--to", str(tmp_path / "job")]
    )
    assert jobs.main() == 0
    assert "kubectl apply" in capsys.readouterr().out


def test_files_without_credentials_have_a_placeholder_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(  # a checkout without changes, so that AWS gets a request
        "tools.jobs.kubernetes.image.read_revision",
        lambda _: SimpleNamespace(changes=(), tag="a", sha="a"),
    )
    cluster = str(CLUSTERS / "eks.yaml")
    arguments = ["--config", str(RUN), "--cluster", cluster, "--to", str(tmp_path / "job")]
    monkeypatch.setattr(sys, "argv", ["jobs", "submit", "train", *arguments])
    assert jobs.main() == 0
    placeholder = f"fill-in.invalid/esm2-eks/training@sha256:{'0' * 64}"
    assert f"first    replace {placeholder}" in capsys.readouterr().out
    assert f"image: {placeholder}" in (tmp_path / "job/job.yaml").read_text()


def test_the_run_file_is_readable_in_its_manifest(tmp_path: Path) -> None:
    write_files(made(), tmp_path)
    text = (tmp_path / "run.yaml").read_text()
    assert "  config.yaml: |\n    " in text and "\\n" not in text
    config = yaml.safe_load(text)["data"]["config.yaml"]
    assert yaml.safe_load(to_yaml({"text": config + "# Å\n"})) == {"text": config + "# Å\n"}


def test_a_token_is_a_signed_request_for_the_callers_identity() -> None:
    session = boto3.Session("AKIDEXAMPLE", "secret", region_name="us-west-2")
    text = token(session, "esm2-eks")
    encoded = text.removeprefix("k8s-aws-v1.")
    url = urlsplit(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    assert url.hostname == "sts.us-west-2.amazonaws.com" and query["Action"] == "GetCallerIdentity"
    assert query["X-Amz-SignedHeaders"] == "host;x-k8s-aws-id" and query["X-Amz-Expires"] == "60"
    assert text != token(session, "another")


def test_kubectl_gets_its_token_from_our_program(monkeypatch: pytest.MonkeyPatch) -> None:
    described = {
        "endpoint": "https://e",
        "certificateAuthority": {"data": "Q0E="},
        "status": "ACTIVE",
    }
    monkeypatch.setattr(
        "tools.kubernetes.kubectl.aws_client",
        lambda session, service: SimpleNamespace(
            describe_cluster=lambda name: {"cluster": described}
        ),
    )
    config = kubeconfig_of(shipped(), None)
    command = config["users"][0]["user"]["exec"]
    environment = {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "PATH": "/usr/bin",
    }
    done = subprocess.run(
        [command["command"], *command["args"]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    answer = json.loads(done.stdout)
    assert answer["apiVersion"] == command["apiVersion"] and answer["kind"] == "ExecCredential"
    assert (
        answer["status"]["token"].startswith("k8s-aws-v1.")
        and answer["status"]["expirationTimestamp"]
    )
    assert config["clusters"][0]["cluster"]["server"] == "https://e"


class Registry:
    """ECR with one image of one commit."""

    def __init__(self, tags: list[str]) -> None:
        self._tags = tags

    def describe_repositories(self, **_: Any) -> dict[str, Any]:
        return {"repositories": [{"repositoryUri": URI}]}

    def describe_images(
        self, *, repositoryName: str, imageIds: list[dict[str, str]]
    ) -> dict[str, Any]:
        if imageIds[0].get("imageTag") not in (None, *self._tags) or imageIds[0].get(
            "imageDigest"
        ) not in (
            None,
            DIGEST,
        ):
            raise ClientError({"Error": {"Code": "ImageNotFoundException"}}, "DescribeImages")
        return {"imageDetails": [{"imageDigest": DIGEST, "imageTags": self._tags}]}


@pytest.fixture
def at_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_registry, "aws_client", lambda session, service: Registry([COMMIT]))
    monkeypatch.setattr(eks_image, "read_revision", lambda repository: Revision(COMMIT, 0, ()))


@pytest.mark.usefixtures("at_commit")
def test_the_image_is_the_commits() -> None:
    assert eks_image.commit_image(shipped(), None) == IMAGE
    assert eks_image.image_note(shipped(), IMAGE, None) is None
    assert eks_image.image_note(shipped(), f"{URI}:{COMMIT}@{DIGEST}", None) is None


@pytest.mark.usefixtures("at_commit")
def test_what_is_known_of_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    other = f"elsewhere.example/esm2@{DIGEST}"
    assert "is not the cluster's repository" in str(eks_image.image_note(shipped(), other, None))
    with pytest.raises(ValueError, match=f"IMAGE: {URI} has no image sha256:000"):
        eks_image.image_note(shipped(), f"{URI}@sha256:{'0' * 64}", None)
    monkeypatch.setattr(
        eks_image, "read_revision", lambda repository: Revision("f" * 40, 0, ("M x",))
    )
    note = eks_image.image_note(shipped(), IMAGE, None)
    assert note == (
        f"the image has the code of commit {COMMIT[:12]}, this checkout is ffffffffffff with changes; "
        "what runs is the image's"
    )
    with pytest.raises(ValueError, match="the code here is not committed"):
        eks_image.commit_image(shipped(), None)
    monkeypatch.setattr(eks_image, "read_revision", lambda repository: Revision("f" * 40, 0, ()))
    with pytest.raises(ValueError, match="has no image of commit ffffffffffff; make image push"):
        eks_image.commit_image(shipped(), None)
    with pytest.raises(
        ValueError, match=r"no FRAMEWORK=bionemo image .* make image push FRAMEWORK=bionemo"
    ):
        eks_image.commit_image(shipped(), None, "bionemo")


@pytest.mark.usefixtures("at_commit")
@pytest.mark.parametrize("has", [False, None])
def test_an_image_of_before_the_package_had_its_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, has: bool | None
) -> None:
    monkeypatch.setattr(eks_image, "read_revision", lambda repository: Revision("f" * 40, 0, ()))
    monkeypatch.setattr(eks_image, "has_package", lambda repository, commit: has)
    if has is None:  # a commit that this clone does not have
        assert "what runs is the image's" in str(eks_image.image_note(shipped(), IMAGE, None))
        return
    with pytest.raises(
        ValueError, match=f"code of commit {COMMIT[:12]}, which has no package seqlm; check"
    ):
        eks_image.image_note(shipped(), IMAGE, None)


def test_a_commit_is_known_by_its_package(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "workloads/seqlm").mkdir(parents=True)
    (tmp_path / "workloads/__main__.py").write_text("")
    git("add", "--all")
    git("commit", "--quiet", "--message", "before")
    before = git("rev-parse", "HEAD")
    (tmp_path / "workloads/seqlm/__init__.py").write_text("")
    git("add", "--all")
    git("commit", "--quiet", "--message", "after")
    assert (
        has_package(tmp_path, before) is False
        and has_package(tmp_path, git("rev-parse", "HEAD")) is True
    )
    assert has_package(tmp_path, "0" * 40) is None and has_package(tmp_path, "latest") is None


@pytest.mark.usefixtures("at_commit")
def test_who_may_not_ask_the_repository_submits_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: Registry, **_: Any) -> dict[str, Any]:
        raise ClientError({"Error": {"Code": "AccessDeniedException"}}, "DescribeRepositories")

    monkeypatch.setattr(Registry, "describe_repositories", refuse)
    assert "may not be read (ecr:Describe*)" in str(eks_image.image_note(shipped(), IMAGE, None))
