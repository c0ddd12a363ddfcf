"""Preflight check of the copies of downloads."""

from __future__ import annotations

from typing import Any

import pytest

from config.slurm_cluster import NodeSetup, SlurmCluster
from tests.tools.accounts import deployed_stacks, empty_account
from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped, shipped_eks, with_group
from tests.tools.preflight.eks_accounts import ACCESS, eks_account
from tests.tools.preflight.report import findings
from tools.images.mirror_downloads import file_name, image_copies, image_digest, needed
from tools.preflight.finding import Finding
from tools.preflight.mirrored_downloads import check_images
from tools.preflight.read_only_aws import ReadOnlyAws

MIRRORED = shipped("slurm", node_setup=NodeSetup(downloads="artifact_bucket"))
WITHOUT_GPUS = with_group(MIRRORED, "workers", instance_type="ml.m5.12xlarge")
(EXPORTER,) = (copy.tag for copy in image_copies(MIRRORED))
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
        (FILES, False, MIRRORED, f"missing: {EXPORTER}"),
        (FILES[1:], True, MIRRORED, f"missing: {FILES[0]}"),
        ([], False, MIRRORED, f"missing: {', '.join(FILES)}, {EXPORTER}"),
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


EKS = shipped_eks("eks", kubernetes={**ACCESS, "images": "image_repository"})
EKS_TAGS = [copy.tag for copy in image_copies(EKS)]


@pytest.mark.parametrize("lacking", [[], EKS_TAGS[1:3]], ids=["all", "two missing"])
def test_names_missing_images_of_eks(lacking: list[str]) -> None:
    aws = eks_account(EKS)
    deployed_stacks(aws, {"esm2-eks-eks-storage": "CREATE_COMPLETE"})
    missing = [copy.image_id for copy in image_copies(EKS) if copy.tag in lacking]

    def describe(parameters: Parameters) -> dict[str, Any]:
        assert parameters["repositoryName"] == "esm2-eks/training"
        if parameters["imageIds"][0] in missing:
            raise Refusal("ImageNotFoundException")
        return {"imageDetails": [{}]}

    aws.answer("ecr", "DescribeImages", describe)
    (found,) = check_images(ReadOnlyAws(aws.session), EKS)
    expected = ("FAIL", f"missing: {', '.join(lacking)}") if lacking else ("OK", "complete")
    assert (found.level, found.message) == expected


def test_images_of_eks_need_the_storage_stack() -> None:
    (found,) = check_images(ReadOnlyAws(eks_account(EKS).session), EKS)
    assert (found.level, found.message.startswith("the image repository")) == ("FAIL", True)
    assert "make deploy STACKS=EksStorageStack" in found.action


@pytest.mark.parametrize(("num_workers", "is_warned"), [(31, False), (32, True)])
def test_many_nodes_that_pull_from_the_internet_are_warned_of(
    num_workers: int, is_warned: bool
) -> None:
    cluster = with_group(shipped_eks("eks"), "workers", num_instances=num_workers)
    num_nodes = sum(group.num_instances for group in cluster.instance_groups)
    found = list(check_images(ReadOnlyAws(eks_account(cluster).session), cluster))
    assert [finding.level for finding in found] == ["WARN"] * is_warned
    if is_warned:
        assert found[0].message.startswith(f"{num_nodes} nodes pull")
        assert found[0].action.index("kubernetes.images") < found[0].action.index("STACKS")
