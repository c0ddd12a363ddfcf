"""Preflight check of the copies of downloads."""

from __future__ import annotations

from typing import Any

import pytest

from config.slurm_cluster import NodeSetup, SlurmCluster
from tests.tools.accounts import deployed_stacks, empty_account
from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped, with_group
from tests.tools.preflight.report import findings
from tools.images.mirror_downloads import file_name, image_digest, needed
from tools.preflight.finding import Finding

MIRRORED = shipped("slurm", node_setup=NodeSetup(downloads="artifact_bucket"))
WITHOUT_GPUS = with_group(MIRRORED, "workers", instance_type="ml.m5.12xlarge")
FILES = [file_name(entry) for entry in needed(MIRRORED)["files"]]


def account(files: list[str], *, images: bool) -> AnsweringAws:
    """Return an account with the storage stack, these files in its bucket, and all or no images."""
    aws = empty_account(MIRRORED)
    deployed_stacks(
        aws, {f"esm2-slurm-slurm-{name}": "CREATE_COMPLETE" for name in ("network", "storage")}
    )

    def objects(parameters: Parameters) -> dict[str, Any]:
        assert parameters["Bucket"] == "sagemaker-esm2-slurm-123456789012-us-west-2"
        assert parameters["Prefix"] == "downloads/"
        return {"Contents": [{"Key": f"downloads/{name}"} for name in files]}

    def describe(parameters: Parameters) -> dict[str, Any]:
        digests = {image_digest(image) for image in needed(MIRRORED)["images"]}
        assert parameters["repositoryName"] == "esm2-slurm/training"
        assert {image["imageDigest"] for image in parameters["imageIds"]} <= digests
        if not images:
            raise Refusal("ImageNotFoundException")
        return {"imageDetails": []}

    aws.answer("s3", "ListObjectsV2", objects)
    aws.answer("ecr", "DescribeImages", describe)
    return aws


def mirror(aws: AnsweringAws, cluster: SlurmCluster) -> Finding:
    (found,) = [
        finding for finding in findings(aws, cluster) if finding.subject == "copies of downloads"
    ]
    return found


@pytest.mark.parametrize(
    ("files", "images", "cluster", "missing"),
    [
        (FILES, True, MIRRORED, None),
        (FILES, False, WITHOUT_GPUS, None),
        (FILES, False, MIRRORED, "missing: dcgm-exporter"),
        (FILES[1:], True, MIRRORED, f"missing: {FILES[0]}"),
        ([], False, MIRRORED, f"missing: {', '.join(FILES)}, dcgm-exporter"),
    ],
    ids=["all", "no GPUs", "no image", "a file less", "none"],
)
def test_names_missing_copies(
    files: list[str], images: bool, cluster: SlurmCluster, missing: str | None
) -> None:
    found = mirror(account(files, images=images), cluster)
    assert (found.level, found.message) == (("FAIL", missing) if missing else ("OK", "complete"))
    assert ("make mirror-downloads" in found.action) == bool(missing)


def test_without_the_bucket_the_order_of_steps_is_reported() -> None:
    found = mirror(empty_account(MIRRORED), MIRRORED)
    assert found.level == "FAIL"
    assert found.action.index("make deploy STACKS=SlurmStorageStack") < found.action.index(
        "mirror-downloads"
    )


@pytest.mark.parametrize(
    "changes", [{"node_setup": NodeSetup()}, {"prometheus": False}], ids=["internet", "no metrics"]
)
def test_skips_clusters_that_need_no_copies(changes: dict[str, Any]) -> None:
    cluster = MIRRORED.model_copy(update=changes)
    aws = empty_account(cluster)
    assert not [
        finding for finding in findings(aws, cluster) if finding.subject == "copies of downloads"
    ]
    assert ("s3", "ListObjectsV2") not in aws.calls


@pytest.mark.parametrize(("num_workers", "is_warned"), [(31, False), (32, True)])
def test_many_nodes_that_download_from_the_internet_are_warned_of(
    num_workers: int, is_warned: bool
) -> None:
    cluster = with_group(shipped("slurm"), "workers", num_instances=num_workers)
    found = [
        finding
        for finding in findings(empty_account(cluster), cluster)
        if finding.subject == "copies of downloads"
    ]
    assert [finding.level for finding in found] == ["WARN"] * is_warned
    if is_warned:
        assert found[0].message.startswith("33 nodes download")
        assert "artifact_bucket" in found[0].action
