"""The training image from ECR to a file that jobs name, by an administrator on the login node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import aws_services
from tests.cluster.artifact_bucket import ArtifactBucket
from tests.cluster.bundle import REPOSITORY
from tests.cluster.cluster import Cluster, at_once
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import CommandFailed
from tests.cluster.patience import wait_until
from tests.cluster.training import let_in, tool

SHA = "c0ffee" * 6 + "beef"
NAME = "esm2-test/training"
REGISTRY = f"123456789012.dkr.ecr.{aws_services.REGION}.amazonaws.com"
MANIFEST = {
    "schemaVersion": 2,
    "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
    "config": {
        "mediaType": "application/vnd.docker.container.image.v1+json",
        "size": 7023,
        "digest": "sha256:" + "ab" * 32,
    },
    "layers": [],
}
SCRIPT = REPOSITORY / "docker" / "enroot_import.sh"
SAMPLE_RUN = "workloads/seqlm/configs/esm2_8m_sample.yaml"


@pytest.fixture(scope="module")
def reference(cluster: Cluster, lifecycle: Lifecycle, bucket: ArtifactBucket) -> str:
    """Reference of an image in the registry, as make push prints it."""
    at_once(let_in, [cluster.login, *cluster.workers])
    bucket.aws("ecr", "create-repository", "--repository-name", NAME)
    image = [
        "--repository-name",
        NAME,
        "--image-tag",
        SHA,
        "--image-manifest",
        json.dumps(MANIFEST),
    ]
    bucket.aws("ecr", "put-image", *image)
    command = [
        "aws",
        "ecr",
        "describe-images",
        "--region",
        aws_services.REGION,
        "--repository-name",
        NAME,
    ]
    query = ["--query", "imageDetails[0].imageDigest", "--output", "text"]
    digest = cluster.controller.run([*command, *query]).output.strip()
    return f"{REGISTRY}/{NAME}:{SHA}@{digest}"


@pytest.fixture
def no_worker(cluster: Cluster) -> Iterator[None]:
    """They take no jobs."""
    names = ",".join(worker.hostname for worker in cluster.workers)
    update = ["scontrol", "update", f"NodeName={names}"]
    cluster.controller.run([*update, "State=DRAIN", "Reason=test"])
    yield
    cluster.controller.run([*update, "State=RESUME"])
    cluster.wait_for_slurm()


def image_of(cluster: Cluster, reference: str) -> str:
    """The path that the tool prints last."""
    return tool(cluster, "tools.images.import_image", "--reference", reference).splitlines()[-1]


def accounted(cluster: Cluster) -> list[str]:
    """User and resources of each import."""
    command = ["sacct", "--allocations", "--noheader", "--parsable2", "--name=import-image"]
    return cluster.controller.run([*command, "--format=user,alloctres"]).output.split()


def test_without_workers_it_is_not_waited_for_one(
    cluster: Cluster, reference: str, no_worker: None
) -> None:
    with pytest.raises(CommandFailed, match="no worker of partition gpu is up: drain"):
        image_of(cluster, reference)


def test_two_who_import_get_one_file_and_jobs_take_it(cluster: Cluster, reference: str) -> None:
    """At the same time, as when somebody asks again after a session has broken."""
    digest = reference.rpartition(":")[2]
    image = f"/fsx/images/{NAME.replace('/', '+')}+{digest}.sqsh"
    options = ["data", f"--config={SAMPLE_RUN}", f"--image={image}", "--user=ada"]
    with pytest.raises(CommandFailed, match=re.escape(f"{image} is not there")):
        tool(cluster, "tools.jobs", "submit", *options)
    command = ("tools.images.import_image", "--reference", reference)
    said = at_once(lambda _: tool(cluster, *command), [cluster.login] * 2)
    assert [text.splitlines()[-1] for text in said] == [image] * 2
    assert sum(f" imports {NAME}:{SHA}; free in /fsx/images: " in text for text in said) == 1
    assert sum(f"{image} is there already" in text for text in said) == 1
    (file,) = (cluster.shared / "images").iterdir()
    assert (file.name, file.stat().st_uid, file.stat().st_mode & 0o777) == (
        Path(image).name,
        0,
        0o644,
    )
    # Accounting gets the record a little later.
    wait_until(lambda: len(accounted(cluster)) == 2, "the imports in accounting", seconds=240)
    assert all(
        line.startswith("root|") and "cpu=4" in line and "gpu" not in line
        for line in accounted(cluster)
    )
    job = tool(cluster, "tools.jobs", "submit", *options).split()[1]
    cluster.controller.run(["scancel", job])
    cluster.wait_for_slurm()


def test_reports_a_full_disk_and_one_that_is_not_mounted(cluster: Cluster, reference: str) -> None:
    worker = cluster.workers[0]
    srun = [
        "srun",
        "--partition=gpu",
        f"--nodelist={worker.hostname}",
        "bash",
        "-s",
        "--",
        reference,
    ]

    def refusal(folder: str) -> str:
        result = cluster.login.run(
            [*srun, f"{folder}/x.sqsh"], text=SCRIPT.read_text(), check=False
        )
        assert result.status
        return result.output

    worker.run(
        ["bash", "-c", "mkdir /opt/sagemaker/images; cat /dev/zero >/opt/sagemaker/full"],
        check=False,
    )
    try:
        said = refusal("/opt/sagemaker/images")
        assert (
            "No space left on device" in said
            and "nothing was kept; its last lines say why. free in" in said
        )
        assert not worker.run(["find", "/opt/sagemaker/images", "-type", "f"]).output
    finally:
        worker.run(["rm", "--recursive", "/opt/sagemaker/full", "/opt/sagemaker/images"])
    assert (
        f"is on the root volume of {worker.hostname}: no shared file system is mounted"
        in refusal("/srv/images")
    )
