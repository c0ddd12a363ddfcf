"""Clusters side by side in one account: no name is used twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

from tests.stacks.intrinsics import Evaluator
from tests.stacks.synthesized import (
    ALL_FILES,
    Templates,
    assembly,
    load,
    read_templates,
    synthesize,
)

# Names that CloudFormation does not identify the resource by, but that must be unique nevertheless.
ALSO_UNIQUE = {
    "AWS::SageMaker::Cluster": ["ClusterName"],
    # Unique in the account, over all regions: CloudFormation makes it up.
    "AWS::Budgets::Budget": ["Budget/BudgetName"],
    "AWS::FSx::FileSystem": [],
    "AWS::EC2::SecurityGroup": ["GroupName"],
    "AWS::SecretsManager::Secret": ["Name"],
    "AWS::EKS::Cluster": ["Name"],
}

EKS_COPY = ("copy-3", "clusters/eks-p5.yaml")


@cache
def naming_properties(kind: str) -> list[str]:
    """Paths of the properties that name a resource in its account, by CloudFormation's registry."""
    if kind.startswith("Custom::"):
        return []
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", kind).schema
    groups = [schema["primaryIdentifier"], *schema.get("additionalIdentifiers", [])]
    # An identifier of several parts (a rule in a policy) is unique by its parent's.
    paths = [group[0].removeprefix("/properties/") for group in groups if len(group) == 1]
    return paths + ALSO_UNIQUE.get(kind, [])


def given(properties: dict[str, Any], path: str) -> Any:
    value: Any = properties
    for part in path.split("/"):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def names(stacks: Templates, region: str) -> Iterator[tuple[str, str]]:
    """(type, name) of all resources that are given a name, and of what the stacks export."""
    evaluate = Evaluator(stacks, region)
    for template in stacks.values():
        for resource in template["Resources"].values():
            for path in naming_properties(resource["Type"]):
                value = given(resource.get("Properties", {}), path)
                # A reference to another resource is no name of one's own, nor is one made of a function's,
                # which CloudFormation makes up.
                if json.dumps(value).startswith('{"Fn::Join": ["", ["/aws/lambda/", {"Ref"'):
                    continue
                if isinstance(value, str) or (isinstance(value, dict) and "Fn::Join" in value):
                    yield resource["Type"], evaluate(value)
        for output in template.get("Outputs", {}).values():
            if "Export" in output:
                yield "export", output["Export"]["Name"]


@cache
def side_by_side() -> dict[str, list[tuple[str, str]]]:
    """Names of all shipped clusters and of two renamed copies, as if all were in one region."""
    found = {}
    for file in ALL_FILES:
        region = load(file).region
        found[file] = list(names(read_templates(assembly(file)), region))
    for copy, file in (
        ("copy-1", "clusters/slurm-p5.yaml"),
        ("copy-2", "clusters/slurm-p5.yaml"),
        EKS_COPY,
    ):
        cluster = load(file, name=copy)
        found[copy] = list(names(read_templates(synthesize(cluster)), cluster.region))
    return found


def test_no_two_clusters_use_a_name() -> None:
    counted = Counter(name for cluster in side_by_side().values() for name in set(cluster))
    assert [name for name, times in counted.items() if times > 1] == []


def test_names_are_looked_at() -> None:
    """The test above would pass on nothing."""
    kinds = {kind for kind, _ in side_by_side()["copy-1"]}
    assert {
        "AWS::S3::Bucket",
        "AWS::ECR::Repository",
        "AWS::KMS::Alias",
        "AWS::Logs::LogGroup",
        "AWS::SSM::Document",
        "AWS::SageMaker::Cluster",
        "export",
    } <= kinds


@pytest.mark.parametrize("cluster", ["copy-1", "copy-2", EKS_COPY[0]])
def test_every_name_is_the_cluster_s_own(cluster: str) -> None:
    assert [name for _, name in side_by_side()[cluster] if cluster not in name] == []


@pytest.mark.parametrize("file", ALL_FILES)
def test_stacks_are_named_after_the_cluster(file: str) -> None:
    manifest = (assembly(file) / "manifest.json").read_text()
    for part in ("network", "storage", "hyperpod"):
        assert f'"stackName": "{load(file).name}-{load(file).scheduler}-{part}"' in manifest
