"""The mirror copies the files of the table once, to the place where nodes look for them."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests import public_images
from node_setup import downloads as on_nodes
from tests.lifecycle.https_server import body, served, write_certificate
from tests.tools.answering_aws import ACCOUNT, AnsweringAws, Parameters, Refusal
from tests.tools.documents.test_deploy_document import policy
from tests.tools.json_documents import RunJson
from tools.images import mirror_downloads

CONTENT = b"an archive"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
CHECKSUM = base64.b64encode(bytes.fromhex(SHA256)).decode()
DIGEST = f"sha256:{'1' * 64}"
THERE = {"imageDetails": [{"imageDigest": DIGEST}]}
REFERENCE = f"registry.example/dcgm-exporter@{DIGEST}"
EFA_HOST = "602401143452.dkr.ecr.us-west-2.amazonaws.com"
REGISTRY = f"{ACCOUNT}.dkr.ecr.us-west-2.amazonaws.com"
BUCKET = f"sagemaker-esm2-slurm-{ACCOUNT}-us-west-2"
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def aws() -> AnsweringAws:
    """An account with the storage stack, and nothing copied yet."""
    aws = AnsweringAws("us-west-2")
    aws.answer(
        "sts",
        "GetCallerIdentity",
        {"Account": ACCOUNT, "Arn": "arn:aws:iam::1:user/ada", "UserId": "A"},
    )
    aws.answer("s3", "HeadBucket", {})
    aws.answer("s3", "HeadObject", Refusal("404", "Not Found", 404))
    aws.answer("s3", "PutObject", {})
    token = {"authorizationToken": "QVdTOnNlY3JldA==", "proxyEndpoint": f"https://{REGISTRY}"}
    aws.answer("ecr", "GetAuthorizationToken", {"authorizationData": [token]})
    aws.answer("ecr", "DescribeImages", Refusal("ImageNotFoundException"))
    return aws


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """One file on a server of HTTPS, and one image."""
    certificate = tmp_path / "certificate.pem"
    write_certificate(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with served(body(CONTENT), certificate) as url:
        yield {
            "files": [{"url": f"{url}/tool-1.0.tar.gz", "sha256": SHA256}],
            "images": [{"name": "dcgm-exporter", "version": "4.6.0", "reference": REFERENCE}],
        }


@pytest.fixture
def run(
    aws: AnsweringAws,
    table: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run the command; its status and what it printed."""

    def command(base: str = "slurm", **changes: Any) -> tuple[int, str]:
        cluster = yaml.safe_load(Path(f"clusters/{base}.yaml").read_text()) | changes
        file = tmp_path / "cluster.yaml"
        file.write_text(yaml.safe_dump(cluster))
        path = tmp_path / "downloads.json"
        path.write_text(json.dumps(table))
        monkeypatch.setattr(mirror_downloads, "TABLE", path)
        monkeypatch.setattr(mirror_downloads, "open_session", lambda region, profile: aws.session)
        monkeypatch.setattr(sys, "argv", ["mirror_downloads", "--cluster", str(file)])
        status = mirror_downloads.main()
        return status, "".join(capsys.readouterr())

    return command


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Have skopeo or docker on PATH, which write down how they were called; returns that file."""
    folder = tmp_path / "bin"
    calls = tmp_path / "calls"
    folder.mkdir()
    # Nothing else: this machine may have the real ones.
    (folder / "grep").symlink_to("/usr/bin/grep")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))

    def put(name: str, last: str = "exit 0") -> Path:
        program = folder / name
        program.write_text(f'#!/bin/bash\necho "{name} $*" >> "{calls}"\n{last}\n')
        program.chmod(0o755)
        return calls

    return put


def copied_at_once(aws: AnsweringAws) -> None:
    """The image is there from the second look on."""
    looks = iter([Refusal("ImageNotFoundException")])

    def describe(parameters: Parameters) -> dict[str, Any]:
        assert parameters == {
            "repositoryName": "esm2-slurm/training",
            "imageIds": [{"imageDigest": DIGEST}],
        }
        refusal = next(looks, None)
        if refusal:
            raise refusal
        return THERE

    aws.answer("ecr", "DescribeImages", describe)


def test_files_and_images_go_where_nodes_look(
    aws: AnsweringAws, run: Run, programs: Callable[..., Path]
) -> None:
    uploads: list[Parameters] = []

    def put(parameters: Parameters) -> dict[str, Any]:
        uploads.append({**parameters, "Body": parameters["Body"].read()})
        parameters["Body"].seek(0)
        return {}

    aws.answer("s3", "PutObject", put)
    copied_at_once(aws)
    calls = programs("skopeo", 'grep --quiet QVdTOnNlY3JldA== "$5"')
    status, output = run()
    assert status == 0, output
    key = f"{on_nodes.DOWNLOADS_PREFIX}/tool-1.0.tar.gz"
    assert uploads == [{"Bucket": BUCKET, "Key": key, "Body": CONTENT, "ChecksumSHA256": CHECKSUM}]
    target = f"{REGISTRY}/esm2-slurm/training:dcgm-exporter-4.6.0"
    words = calls.read_text().split()
    assert words[:5] == ["skopeo", "copy", "--all", "--preserve-digests", "--authfile"]
    assert words[6:] == [f"docker://{REFERENCE}", f"docker://{target}"]
    assert not Path(words[5]).exists()
    assert f"tool-1.0.tar.gz: uploaded to s3://{BUCKET}/{key}" in output
    assert f"dcgm-exporter-4.6.0: copied to {target}" in output
    assert "secret" not in output and "QVdT" not in output


def test_copies_as_json(
    aws: AnsweringAws, run: Run, programs: Callable[..., Path], tmp_path: Path, run_json: RunJson
) -> None:
    aws.answer("ecr", "DescribeImages", THERE)
    assert run()[0] == 0
    result = run_json(mirror_downloads.main, "--cluster", str(tmp_path / "cluster.yaml"))["result"]
    assert result["files"] == ["tool-1.0.tar.gz"]
    assert result["images"] == [{"tag": "dcgm-exporter-4.6.0", "is_there": True}]


def test_it_needs_no_more_permissions_than_are_listed(
    aws: AnsweringAws, run: Run, programs: Callable[..., Path]
) -> None:
    copied_at_once(aws)
    programs("skopeo")
    assert run()[0] == 0
    names = {"s3:HeadBucket": "s3:ListBucket", "s3:HeadObject": "s3:GetObject"}
    used = {f"{service}:{operation}" for service, operation in aws.calls} - {
        "sts:GetCallerIdentity"
    }
    assert len(used) == 5
    assert {names.get(action, action) for action in used} <= policy(
        "Preflight", "Downloads", "Images"
    )


def test_existing_copies_are_not_made_again(aws: AnsweringAws, run: Run) -> None:
    aws.answer("s3", "HeadObject", {"ChecksumSHA256": CHECKSUM})
    aws.answer("ecr", "DescribeImages", THERE)
    status, output = run()
    assert status == 0 and output.count("there already") == 2
    assert ("s3", "PutObject") not in aws.calls


def test_a_copy_of_another_content_is_replaced(
    aws: AnsweringAws, run: Run, programs: Callable[..., Path]
) -> None:
    aws.answer("s3", "HeadObject", {"ChecksumSHA256": base64.b64encode(b"x" * 32).decode()})
    aws.answer("ecr", "DescribeImages", THERE)
    assert "uploaded" in run()[1]


def test_docker_copies_where_there_is_no_skopeo(
    aws: AnsweringAws, run: Run, programs: Callable[..., Path]
) -> None:
    copied_at_once(aws)
    calls = programs(
        "docker",
        '[[ "$2" == version ]] || grep --quiet QVdTOnNlY3JldA== "$DOCKER_CONFIG/config.json"',
    )
    assert run()[0] == 0
    target = f"{REGISTRY}/esm2-slurm/training:dcgm-exporter-4.6.0"
    assert (
        calls.read_text().splitlines()[1]
        == f"docker buildx imagetools create --tag {target} {REFERENCE}"
    )


def test_without_a_program_it_says_what_to_install(run: Run, programs: Callable[..., Path]) -> None:
    programs("docker", "exit 1")
    status, output = run()
    assert status == 1
    assert "neither skopeo nor docker with buildx" in output and "apt-get install skopeo" in output
    assert "tool-1.0.tar.gz: uploaded" in output


def test_a_copy_that_fails_says_why(run: Run, programs: Callable[..., Path]) -> None:
    programs("skopeo", "echo 'toomanyrequests' >&2; exit 1")
    with pytest.raises(ValueError, match=r"`skopeo copy .*` ended with 1: toomanyrequests"):
        run()


def test_a_copy_with_another_digest_is_no_copy(run: Run, programs: Callable[..., Path]) -> None:
    programs("skopeo")
    with pytest.raises(ValueError, match=f"was written, but its digest is not {DIGEST}"):
        run()


def test_another_file_is_not_uploaded(aws: AnsweringAws, table: dict[str, Any], run: Run) -> None:
    table["files"][0]["sha256"] = "0" * 64
    with pytest.raises(ValueError, match=f"has SHA-256 {SHA256} .* the file was not uploaded"):
        run()
    assert ("s3", "PutObject") not in aws.calls


def test_a_machine_without_internet_says_so(table: dict[str, Any], run: Run) -> None:
    table["files"][0]["url"] = "https://127.0.0.1:1/tool"
    with pytest.raises(ValueError, match=r"Connection refused; run this where there is internet"):
        run()


@pytest.mark.parametrize(
    ("service", "operation", "code", "message"),
    [
        ("s3", "HeadBucket", "404", "bucket .* does not exist; deploy the storage stack first"),
        (
            "ecr",
            "DescribeImages",
            "RepositoryNotFoundException",
            "repository .* deploy the storage stack first",
        ),
    ],
)
def test_before_the_storage_stack_there_is_nowhere_to_copy_to(
    aws: AnsweringAws, run: Run, service: str, operation: str, code: str, message: str
) -> None:
    aws.answer(service, operation, Refusal(code, "no", 404))
    with pytest.raises(ValueError, match=message):
        run()


def test_without_metrics_there_is_nothing_to_copy(aws: AnsweringAws, run: Run) -> None:
    assert "nothing to copy" in run(prometheus=False)[1]
    assert aws.calls == []


def eks_copies(aws: AnsweringAws) -> set[str]:
    """Let the repository have each image from the second look on; returns the ids that were looked for."""
    looked: set[str] = set()

    def describe(parameters: Parameters) -> dict[str, Any]:
        assert parameters["repositoryName"] == "esm2-eks/training"
        ((id_of_image,),) = (list(image.values()) for image in parameters["imageIds"])
        if id_of_image not in looked:
            looked.add(id_of_image)
            raise Refusal("ImageNotFoundException")
        return THERE

    aws.answer("ecr", "DescribeImages", describe)
    return looked


def test_images_of_eks_are_copied_by_digest_or_by_tag(
    aws: AnsweringAws, run: Run, programs: Callable[..., Path]
) -> None:
    """Only the copy of the EFA plugin, which is in another account's ECR, gets a login for its source."""
    looked = eks_copies(aws)
    source_login = f'grep -q {EFA_HOST} "$5"'
    logins = f'if [[ "$6" == *{EFA_HOST}* ]]; then {source_login}; else ! {source_login}; fi'
    calls = programs("skopeo", logins)
    status, output = run("eks", kubernetes={"images": "image_repository"})
    assert status == 0, output
    copied = [words.split()[-2:] for words in calls.read_text().splitlines()]
    assert [target.rpartition("/")[0] for _, target in copied] == [
        f"docker://{REGISTRY}/esm2-eks"
    ] * 4
    sources = {
        target.rpartition(":")[2]: source.removeprefix("docker://") for source, target in copied
    }
    assert sources == {
        "nvidia-device-plugin-v0.16.1": "nvcr.io/nvidia/k8s-device-plugin:v0.16.1",
        "efa-device-plugin-v0.5.13": f"{EFA_HOST}/eks/aws-efa-k8s-device-plugin:v0.5.13",
        "busybox-1.37.0": f"public.ecr.aws/docker/library/busybox@{public_images.SHELL.digest}",
        "prometheus-v3.5.0": f"quay.io/prometheus/prometheus@{public_images.PROMETHEUS.digest}",
    }
    assert looked == {
        public_images.SHELL.digest,
        public_images.PROMETHEUS.digest,
        "nvidia-device-plugin-v0.16.1",
        "efa-device-plugin-v0.5.13",
    }
    assert f"efa-device-plugin-v0.5.13: the digest is {DIGEST}; record it" in output
    assert "prometheus-v3.5.0: the digest" not in output
    assert not {service for service, _ in aws.calls} & {"s3"}


def test_without_the_switch_eks_has_nothing_to_copy(aws: AnsweringAws, run: Run) -> None:
    output = run("eks")[1]
    assert "nothing to copy: kubernetes.images is internet" in output
    assert "make deploy STACKS=EksStorageStack" in output
    assert aws.calls == []
