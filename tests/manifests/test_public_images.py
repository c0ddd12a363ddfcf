"""Images of EKS clusters: each is in ECR of the region or has a row, and closed networks get copies alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config.eks_cluster import EksCluster
from config.reading.loader import load_eks_cluster
from manifests.chart_patches import RELEASE, PodPatch, chart_patches, patched
from manifests.chart_values import chart_values
from manifests.charts import CACHE, chart_folder, load_charts, problem_of
from manifests.lustre import folder_job
from manifests.public_images import (
    PUBLIC_IMAGES,
    SHELL,
    images_of,
    is_known,
    is_regional,
    needed_images,
    repository_address,
    with_copies,
)
from tests.manifests.helm_runs import STAND_INS, render

REGION = "eu-west-1"
"""A region that no image's source is in."""
HARDWARE = ("ml.m5.2xlarge", "ml.p5.48xlarge", "ml.trn1.32xlarge")
"""Types that need all device plugins together."""


def cluster_with(images: str) -> EksCluster:
    """A cluster with every part of the chart that a cluster file may switch on."""
    base = load_eks_cluster(Path("clusters/eks.yaml"))
    groups = [
        base.instance_groups[0].model_copy(update={"name": f"group-{index}", "instance_type": name})
        for index, name in enumerate(HARDWARE)
    ]
    kubernetes = base.kubernetes.model_copy(update={"images": images})
    changes = {
        "region": REGION,
        "instance_groups": groups,
        "kubernetes": kubernetes,
        "training_operator": "kubeflow",
    }
    return base.model_copy(update=changes)


COPIED = cluster_with("image_repository")
REPOSITORY = repository_address(COPIED, "123456789012")


@pytest.fixture(params=["stand-in", "upstream"])
def chart(request: pytest.FixtureRequest) -> Path:
    if request.param == "stand-in":
        return STAND_INS / "hyperpod"
    problem = problem_of("hyperpod", load_charts()["hyperpod"], CACHE)
    if problem:
        pytest.skip(f"{problem}: make charts")
    return chart_folder("hyperpod")


def installed(chart: Path, cluster: EksCluster) -> list[dict[str, Any]]:
    """The chart's objects as the stack leaves them."""
    rendered = render(chart, chart_values(cluster, REPOSITORY), release=RELEASE)
    return patched(rendered, chart_patches(cluster, REPOSITORY))


def test_each_image_of_the_chart_has_a_row_and_each_row_is_of_the_chart(chart: Path) -> None:
    images = images_of(installed(chart, cluster_with("internet")))
    assert [image for image in images if not is_known(image, REGION)] == []
    public = {image for image in images if not is_regional(image, REGION)}
    of_chart = [row for row in PUBLIC_IMAGES if row.chart_part or row.name.endswith("-plugin")]
    assert public == {row.reference for row in of_chart}


def test_a_closed_network_takes_no_image_of_the_chart_from_elsewhere(chart: Path) -> None:
    images = images_of(installed(chart, COPIED))
    assert [image for image in images if not is_regional(image, REGION)] == []
    copies = {image for image in images if image.startswith(f"{REPOSITORY}:")}
    assert len(copies) == 4
    assert copies <= {image.copy_in(REPOSITORY) for image in needed_images(COPIED)}


def test_a_row_that_sets_no_value_of_the_chart_is_noticed(
    chart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-added entry: the image is copied, but the chart does not use the copy."""
    (nvidia,) = (row for row in PUBLIC_IMAGES if row.name == "nvidia-device-plugin")
    monkeypatch.setattr("manifests.chart_values.needed_images", lambda cluster: [])
    images = images_of(installed(chart, COPIED))
    assert nvidia.reference in [image for image in images if not is_regional(image, REGION)]


def test_patches_find_their_objects_and_containers(chart: Path) -> None:
    patches = chart_patches(COPIED, REPOSITORY)
    neuron = next(patch for patch in patches if patch.overrides_chart)
    rendered = render(chart, chart_values(COPIED, REPOSITORY), release=RELEASE)
    other = PodPatch("Any", neuron.namespace, neuron.kind, "another", {})
    with pytest.raises(
        ValueError, match="the chart has no daemonset another in namespace kube-system"
    ):
        patched(rendered, [other])
    pod_spec = {"containers": [{"name": "another", "image": "any"}]}
    renamed = PodPatch("Any", neuron.namespace, neuron.kind, neuron.name, pod_spec)
    with pytest.raises(ValueError, match=r"has the containers .*, and .* changes another"):
        patched(rendered, [renamed])


def test_jobs_with_copies_have_another_name() -> None:
    """A job cannot be changed."""
    public = folder_job(["any"])
    (copied,) = with_copies([public], REPOSITORY)
    assert copied["metadata"]["name"] == f"{public['metadata']['name']}-copy"
    assert images_of([copied]) == [f"{REPOSITORY}:{SHELL.tag}@{SHELL.digest}"]
    assert images_of([public]) == [SHELL.reference]


def test_an_image_without_a_row_is_refused() -> None:
    pod = {"kind": "Pod", "metadata": {"name": "new"}, "spec": {"containers": [{"image": "a/b:1"}]}}
    with pytest.raises(
        ValueError, match=r"image a/b:1 of Pod new is not in manifests/public_images"
    ):
        with_copies([pod], REPOSITORY)


def test_names_of_copies_are_no_prefixes_of_one_another() -> None:
    """Rules of the repository count the versions of an image by the beginning of their tags."""
    names = [f"{image.name}-" for image in PUBLIC_IMAGES]
    assert not [(a, b) for a in names for b in names if a != b and a.startswith(b)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("reference", "regional"),
    [
        ("111122223333.dkr.ecr.eu-west-1.amazonaws.com/eks/coredns:v1", True),
        ("111122223333.dkr.ecr.eu-west-1.amazonaws.com.evil.example/x", False),
        ("111122223333.dkr.ecr.us-west-2.amazonaws.com/eks/coredns:v1", False),
        ("public.ecr.aws/docker/library/busybox:1", False),
        ("busybox", False),
    ],
)
def test_registries_that_a_closed_network_reaches(reference: str, regional: bool) -> None:
    assert is_regional(reference, REGION) is regional
