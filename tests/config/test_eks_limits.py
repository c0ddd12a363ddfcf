"""Limits of EKS cluster files match those of SageMaker, EKS and their regions."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, get_args

import botocore.session
import pytest
import regex
from botocore.model import ServiceModel, Shape
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER, ResourceNotFoundError

from config.cluster_kinds import KINDS
from config.facts.regions import ZONE_ID_PREFIXES
from config.facts.registry import regions_with
from config.kubernetes import LogKind
from config.task_governance import MAX_NAME
from config.text_forms import FORMS


@cache
def model(service: str) -> ServiceModel:
    return botocore.session.get_session().get_service_model(service)


def shape(service: str, name: str) -> Shape:
    return model(service).shape_for(name)


@cache
def schema() -> dict[str, Any]:
    return KINDS["eks"].model_json_schema()


def setting(section: str, name: str) -> dict[str, Any]:
    """Return a field's JSON schema; for a list that may be null, that of the list."""
    found = schema()["$defs"][section]["properties"][name]
    options: list[dict[str, Any]] = found.get("anyOf", [found])
    return options[0]


@pytest.mark.parametrize(
    ("section", "name", "theirs"),
    [
        ("EksInstanceGroup", "num_instances", "ClusterInstanceCount"),
        ("EksInstanceGroup", "ebs_gib", "ClusterEbsVolumeSizeInGB"),
        ("PriorityClass", "weight", "PriorityWeight"),
        ("Team", "fair_share_weight", "FairShareWeight"),
    ],
)
def test_ranges_of_numbers_match_sagemaker_s(section: str, name: str, theirs: str) -> None:
    ours = setting(section, name)
    limits = shape("sagemaker", theirs).metadata
    assert (ours["minimum"], ours["maximum"]) == (limits["min"], limits["max"])


@pytest.mark.parametrize(
    ("section", "name", "theirs"),
    [
        ("EksInstanceGroup", "taints", "ClusterKubernetesTaints"),
        ("Team", "quota", "ComputeQuotaResourceConfigList"),
        ("TaskGovernance", "priority_classes", "PriorityClassList"),
    ],
)
def test_lengths_of_lists_match_sagemaker_s(section: str, name: str, theirs: str) -> None:
    assert setting(section, name)["maxItems"] == shape("sagemaker", theirs).metadata["max"]


def test_number_of_groups_matches_sagemaker_s() -> None:
    theirs = shape("sagemaker", "ClusterInstanceGroupSpecifications").metadata["max"]
    assert schema()["properties"]["instance_groups"]["maxItems"] == theirs


def test_number_of_labels_matches_sagemaker_s() -> None:
    theirs = shape("sagemaker", "ClusterKubernetesLabels").metadata["max"]
    assert setting("EksInstanceGroup", "labels")["maxProperties"] == theirs


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (setting("Taint", "key"), "ClusterKubernetesTaintKey"),
        (setting("Taint", "value"), "ClusterKubernetesTaintValue"),
        (
            setting("EksInstanceGroup", "labels")["additionalProperties"],
            "ClusterKubernetesLabelValue",
        ),
        (setting("EksInstanceGroup", "image_release_version"), "ImageReleaseVersion"),
        (setting("Team", "name"), "ComputeQuotaTargetTeamName"),
        (setting("PriorityClass", "name"), "ClusterSchedulerPriorityClassName"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sagemaker_accepts_the_accepted_strings(ours: dict[str, Any], theirs: str) -> None:
    limits = shape("sagemaker", theirs).metadata
    examples = [*FORMS[ours["pattern"]].examples, "a", "a1", "a" * ours.get("maxLength", 63)]
    taken = [text for text in examples if regex.fullmatch(ours["pattern"], text)]
    assert len(taken) >= 2
    for text in taken:
        assert regex.fullmatch(limits["pattern"], text)
        assert limits.get("min", 0) <= len(text) <= limits.get("max", MAX_NAME)


@pytest.mark.parametrize(
    ("name", "theirs"), [("sharing", "ResourceSharingStrategy"), ("preemption", "PreemptTeamTasks")]
)
def test_values_of_task_governance_match_sagemaker_s(name: str, theirs: str) -> None:
    words = {word.title().replace("_", "") for word in setting("Team", name)["enum"]}
    assert words == set(shape("sagemaker", theirs).metadata["enum"])


def test_effects_of_taints_match_sagemaker_s() -> None:
    assert (
        setting("Taint", "effect")["enum"]
        == shape("sagemaker", "ClusterKubernetesTaintEffect").metadata["enum"]
    )


def test_health_checks_match_cloudformation_s() -> None:
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(
        "us-east-1", "AWS::SageMaker::Cluster"
    ).schema
    theirs = schema["definitions"]["DeepHealthCheckType"]["enum"]
    assert setting("EksInstanceGroup", "deep_health_checks")["items"]["enum"] == theirs


def test_kinds_of_logs_match_eks_s() -> None:
    assert set(get_args(LogKind)) == set(shape("eks", "LogType").metadata["enum"])


def test_namespace_of_a_team_matches_sagemaker_s() -> None:
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(
        "us-east-1", "AWS::SageMaker::ComputeQuota"
    ).schema
    assert "'hyperpod-ns-<TeamName>'" in json.dumps(schema)


def test_grafana_regions_match_cloudformation_s() -> None:
    offered = set()
    for region in ZONE_ID_PREFIXES:
        try:
            PROVIDER_SCHEMA_MANAGER.get_resource_schema(region, "AWS::Grafana::Workspace")
        except ResourceNotFoundError:
            continue
        offered.add(region)
    assert offered == regions_with("AWS::Grafana::Workspace")
