"""Images of nodes in make status."""

from __future__ import annotations

from typing import Any

from tests.tools.answering_aws import AnsweringAws, Refusal
from tests.tools.nodes.slurm_nodes import node
from tools.nodes.images import images_report


def with_image(group: str, index: int, release: str, status: str) -> dict[str, Any]:
    image = {"CurrentImageReleaseVersion": release, "ImageVersionStatus": status}
    return node(group, index) | image


def report(*nodes: dict[str, Any]) -> str:
    aws = AnsweringAws("us-west-2")
    aws.answer("sagemaker", "ListClusterNodes", {"ClusterNodeSummaries": list(nodes)})
    text = images_report(aws.session.client("sagemaker"), "esm2-slurm")
    assert set(aws.calls) == {("sagemaker", "ListClusterNodes")}
    return text


def test_stale_images_are_named_by_group() -> None:
    said = report(
        with_image("controller", 1, "1.2.0", "UpToDate"),
        with_image("workers", 1, "1.1.0", "SecurityUpdateRequired"),
        with_image("workers", 2, "1.1.0", "SecurityUpdateRequired"),
        with_image("workers", 3, "1.2.0", "UpToDate"),
        node("own", 1),
    ).splitlines()
    assert said[0] == "stale images:"
    assert said[1].split() == ["workers", "2", "node(s)", "1.1.0", "SecurityUpdateRequired"]
    assert 'make patch GROUP="workers"' in said[2]
    assert said[3].startswith("images: the nodes have 2 releases, 1.1.0, 1.2.0. A new group starts")
    assert len(said) == 4


def test_nodes_with_the_newest_image_are_one_line() -> None:
    nodes = [with_image("workers", index, "1.2.0", "UpToDate") for index in (1, 2)]
    assert report(*nodes, node("own", 1)) == "images: none is reported as stale"


def test_the_types_of_a_group_with_several_are_counted() -> None:
    other = node("workers", 3) | {"InstanceType": "ml.g6.8xlarge"}
    nodes = [node("controller", 1), node("workers", 1), node("workers", 2), other]
    assert report(*nodes).splitlines() == [
        "images: none is reported as stale",
        "types of workers: 2 * ml.g5.8xlarge, 1 * ml.g6.8xlarge",
    ]


def test_images_that_cannot_be_read_are_one_line() -> None:
    aws = AnsweringAws("us-west-2")
    aws.answer("sagemaker", "ListClusterNodes", Refusal("AccessDeniedException", "not you"))
    said = images_report(aws.session.client("sagemaker"), "esm2-slurm")
    assert said.startswith("images: cannot be read: ") and "not you" in said
