"""EKS in a network without internet access: endpoints, and images from the cluster's own repository."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from config.eks_cluster import EksCluster
from manifests.public_images import PUBLIC_IMAGES, images_of, is_regional, needed_images
from tests.stacks.base_templates import Template
from tests.stacks.found_resources import endpoints
from tests.stacks.intrinsics import Evaluator
from tests.stacks.synthesized import Templates, load, read_templates, resources, synthesize
from tests.stacks.test_network_endpoints import ENDPOINTS as SLURM_ENDPOINTS

CHART = "Custom::AWSCDK-EKS-HelmChart"
OBJECTS = "Custom::AWSCDK-EKS-KubernetesResource"
PATCH = "Custom::AWSCDK-EKS-KubernetesPatch"
SYSTEM = {"name": "system", "instance_type": "ml.m5.4xlarge", "num_instances": 2}
CLOSED: EksCluster = load(
    "clusters/eks-trn2.yaml",
    network={
        "vpc": "new",
        "availability_zone_ids": ["use2-az3", "use2-az1"],
        "internet": "none",
        "interface_endpoints": True,
    },
    kubernetes={"images": "image_repository"},
    training_operator="kubeflow",
    studio={"profiles": [{"name": "ada", "sign_in_name": "ada"}]},
    instance_groups=[
        SYSTEM,
        {**SYSTEM, "name": "gpu", "instance_type": "ml.g5.8xlarge"},
        {**SYSTEM, "name": "trn", "instance_type": "ml.trn2.48xlarge"},
    ],
)
"""Cluster that needs every image of the table."""


@cache
def stacks() -> Templates:
    return read_templates(synthesize(CLOSED))


@pytest.fixture(scope="module")
def evaluate() -> Evaluator:
    return Evaluator(stacks(), CLOSED.region)


def properties(kind: str) -> list[dict[str, Any]]:
    return [found["Properties"] for found in resources(stacks()["EksHyperPodStack"], kind).values()]


def network() -> Template:
    return Template(stacks()["EksNetworkStack"])


def test_objects_have_copies_alone(evaluate: Evaluator) -> None:
    objects = [
        made for found in properties(OBJECTS) for made in json.loads(evaluate(found["Manifest"]))
    ]
    images = images_of(objects)
    assert [image for image in images if not is_regional(image, CLOSED.region)] == []
    names = {image.rpartition("/")[2].partition(":")[2].partition("@")[0] for image in images}
    needed = {image.tag for image in needed_images(CLOSED)}
    assert names == {tag for tag in needed if tag.startswith(("busybox", "aws-cli", "prometheus"))}


def test_chart_and_patches_have_copies(evaluate: Evaluator) -> None:
    (chart,) = properties(CHART)
    values = json.loads(evaluate(chart["Values"]))
    images = [
        f"{part['image']['repository']}:{part['image']['tag']}"
        for part in values.values()
        if "image" in part
    ]
    patches = [json.loads(evaluate(found["ApplyPatchJson"])) for found in properties(PATCH)]
    images += images_of(patches)
    assert len(images) == 4
    assert [image for image in images if not is_regional(image, CLOSED.region)] == []


def test_a_patch_of_what_the_chart_sets_follows_each_release() -> None:
    """Helm sets such fields back at an upgrade, so CloudFormation must apply the patch again."""
    (neuron,) = (
        found for found in properties(PATCH) if found["ResourceName"].startswith("daemonset/")
    )
    assert '\\"hyperpod-esm2/release\\":' in json.dumps(neuron["ApplyPatchJson"])
    restored = json.loads(neuron["RestorePatchJson"])["spec"]["template"]["spec"]
    assert restored == {"hostNetwork": False, "tolerations": [], "containers": []}


def test_nothing_leads_to_the_internet() -> None:
    for kind in ("AWS::EC2::NatGateway", "AWS::EC2::InternetGateway", "AWS::EC2::Route"):
        assert not network().resources(kind), kind


def test_interface_endpoints_are_those_of_nodes_studio_and_installer() -> None:
    """The functions that install charts are in the VPC. The first one invokes the others."""
    of_eks = {"eks", "eks-auth", "lambda"}
    of_studio = {"sqs", "sagemaker.runtime"}
    found = {endpoint["ServiceName"] for endpoint in endpoints(network(), "Interface")}
    assert found == {
        f"com.amazonaws.{CLOSED.region}.{name}" for name in SLURM_ENDPOINTS | of_eks | of_studio
    }


def test_the_installer_reports_through_the_endpoint_of_s3() -> None:
    """CloudFormation's bucket belongs to another account, and its name has the region without dashes."""
    (endpoint,) = endpoints(network(), "Gateway")
    report = endpoint["PolicyDocument"]["Statement"][0]
    assert report["Action"] == "s3:PutObject"
    bucket = json.dumps(report["Resource"])
    assert ":s3:::cloudformation-custom-resource-response-useast2/*" in bucket


def test_the_repository_keeps_versions_of_each_copy() -> None:
    (repository,) = resources(stacks()["EksStorageStack"], "AWS::ECR::Repository").values()
    text = repository["Properties"]["LifecyclePolicy"]["LifecyclePolicyText"]
    rules = sorted(json.loads(text)["rules"], key=lambda rule: int(rule["rulePriority"]))
    prefixes = [rule["selection"].get("tagPrefixList") for rule in rules]
    assert prefixes == [
        ["dcgm-exporter-"],
        *([f"{image.name}-"] for image in PUBLIC_IMAGES),
        None,
        None,
    ]
    assert rules[-1]["selection"]["tagStatus"] == "any"
