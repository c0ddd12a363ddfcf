"""Preflight checks of EKS add-ons: versions, builds, schemas of configurations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from config.facts.addons import ADDON_VERSIONS, OBSERVABILITY, TRAINING_OPERATOR, VPC_CNI
from config.facts.known_bad import known_fault
from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.preflight.eks_accounts import (
    EKS,
    OBSERVABILITY_SCHEMA,
    P5,
    VERSIONS,
    approved_template,
    eks_account,
    offered,
)
from tests.tools.preflight.report import findings, problems
from tools.preflight import planned

pytestmark = pytest.mark.usefixtures("approved")


def test_checks_every_addon_of_the_template() -> None:
    aws = eks_account(P5)
    asked: list[str] = []
    versions = aws.answers["eks", "DescribeAddonVersions"]

    def answer(parameters: Parameters) -> dict[str, Any]:
        asked.append(parameters["addonName"])
        return versions(parameters)

    aws.answer("eks", "DescribeAddonVersions", answer)
    findings(aws, P5)
    resources = approved_template(P5)["Resources"].values()
    assert set(asked) == {
        resource["Properties"]["AddonName"] for resource in resources if "Addon" in resource["Type"]
    }


def addons_answer(aws: AnsweringAws, name: str, answer: list[dict[str, Any]] | Refusal) -> None:
    """Replace the versions of one add-on."""
    others = aws.answers["eks", "DescribeAddonVersions"]

    def versions(parameters: Parameters) -> dict[str, Any]:
        if parameters["addonName"] != name:
            return others(parameters)
        if isinstance(answer, Refusal):
            raise answer
        return (
            {"addons": [{"addonName": name, "addonVersions": answer}]} if answer else {"addons": []}
        )

    aws.answer("eks", "DescribeAddonVersions", versions)


def test_a_version_that_is_known_to_be_bad_is_never_recommended() -> None:
    aws = eks_account()
    fixed = "v1.23.1-eksbuild.1"
    bad = "v1.22.2-eksbuild.1"
    addons_answer(aws, VPC_CNI, [offered(fixed), offered(bad, default=True)])
    (found,) = [finding for finding in findings(aws, EKS) if finding.level != "OK"]
    assert found.level == "FAIL" and fixed in found.message
    assert bad not in found.message + found.action
    addons_answer(aws, VPC_CNI, [offered(bad, default=True)])
    (found,) = [finding for finding in findings(aws, EKS) if finding.level != "OK"]
    assert "all offered versions are known to be bad" in found.message


@pytest.mark.parametrize(
    ("version", "is_bad"),
    [
        ("v1.22.0-eksbuild.9", False),
        ("v1.22.1-eksbuild.1", True),
        ("v1.22.3-eksbuild.2", True),
        ("v1.22.4-eksbuild.1", False),
        ("v1.23.0-eksbuild.1", False),
    ],
)
def test_a_pinned_version_that_is_known_to_be_bad_is_refused(
    version: str, is_bad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = json.loads(json.dumps(approved_template(EKS)).replace(VERSIONS[VPC_CNI], version))
    monkeypatch.setattr(planned, "synthesize", lambda cluster: planned.Synthesis(template, []))
    aws = eks_account()
    addons_answer(aws, VPC_CNI, [offered(version)])
    found = [text for level, _, text in problems(aws, EKS) if level == "FAIL"]
    assert any("gives the primary address" in text for text in found) is is_bad


def test_no_version_of_the_table_is_known_to_be_bad() -> None:
    for versions in ADDON_VERSIONS.values():
        assert not [name for name, version in versions.items() if known_fault(name, version)]


def test_an_unavailable_version_names_the_offered_ones_and_the_table() -> None:
    aws = eks_account()
    newer = [offered(f"v1.3{minor}.0-eksbuild.1", default=minor == 7) for minor in range(9, 2, -1)]
    addons_answer(aws, VPC_CNI, newer)
    (found,) = [finding for finding in findings(aws, EKS) if finding.level != "OK"]
    assert (found.level, found.subject) == ("FAIL", "add-on vpc-cni")
    assert found.message == (
        f"{VERSIONS[VPC_CNI]} is not offered for Kubernetes 1.34 in us-west-2; offered are "
        "v1.39.0-eksbuild.1, v1.38.0-eksbuild.1, v1.37.0-eksbuild.1, v1.36.0-eksbuild.1, v1.35.0-eksbuild.1 "
        "and 2 older"
    )
    assert (
        found.action
        == "put one of them in config/facts/addons.py, such as EKS's default v1.37.0-eksbuild.1"
    )


@pytest.mark.parametrize("answer", [[], Refusal("ResourceNotFoundException")])
def test_reports_an_addon_that_the_region_lacks(answer: Any) -> None:
    aws = eks_account()
    addons_answer(aws, TRAINING_OPERATOR, answer)
    assert problems(aws, EKS) == [
        (
            "FAIL",
            f"add-on {TRAINING_OPERATOR}",
            "it is not offered for Kubernetes 1.34 in us-west-2",
        )
    ]


def test_reports_an_addon_without_a_build_for_the_nodes() -> None:
    aws = eks_account()
    addons_answer(aws, VPC_CNI, [offered(VERSIONS[VPC_CNI], architecture=["arm64"])])
    assert problems(aws, EKS) == [
        ("FAIL", "add-on vpc-cni", f"{VERSIONS[VPC_CNI]} is for arm64, nodes are x86_64")
    ]


def schema_answer(aws: AnsweringAws, name: str, schema: Any) -> None:
    """Replace the schema of one add-on's configuration."""
    others = aws.answers["eks", "DescribeAddonConfiguration"]

    def configuration(parameters: Parameters) -> dict[str, Any]:
        if parameters["addonName"] != name:
            return others(parameters)
        return {"configurationSchema": schema if isinstance(schema, str) else json.dumps(schema)}

    aws.answer("eks", "DescribeAddonConfiguration", configuration)


def test_a_rejected_configuration_names_the_place() -> None:
    """AWS's samples have logging in two places, and only the live schema shows the valid one."""
    elsewhere = json.loads(json.dumps(OBSERVABILITY_SCHEMA))
    metrics = elsewhere["properties"]["metricsProvider"]
    elsewhere["properties"]["logging"] = metrics.pop("properties")["logging"]
    metrics["additionalProperties"] |= {
        "properties": {"level": {"enum": ["BASIC"]}},
        "additionalProperties": False,
    }
    aws = eks_account()
    schema_answer(aws, OBSERVABILITY, elsewhere)
    (found,) = [finding for finding in findings(aws, EKS) if finding.level != "OK"]
    assert (found.level, found.subject) == ("FAIL", f"add-on {OBSERVABILITY}")
    assert "Additional properties are not allowed ('enabled' was unexpected)" in found.message
    assert (
        "metricsProvider.scalingMetrics.level: 'DISABLED' is not one of ['BASIC']" in found.message
    )
    assert f"aws eks describe-addon-configuration --addon-name {OBSERVABILITY}" in found.action


@pytest.mark.parametrize(
    ("schema", "level", "message"),
    [
        ("", "WARN", "EKS has no schema for its configuration"),
        (
            "not json",
            "UNKNOWN",
            "could not be checked: the schema of its configuration cannot be read: ",
        ),
        ({"type": "no such type"}, "UNKNOWN", "could not be checked: the schema"),
    ],
)
def test_reports_an_empty_or_invalid_schema(schema: Any, level: str, message: str) -> None:
    aws = eks_account()
    schema_answer(aws, VPC_CNI, schema)
    ((found, subject, text),) = problems(aws, EKS)
    assert (found, subject) == (level, "add-on vpc-cni")
    assert text.startswith(message)


def test_reports_a_missing_configuration() -> None:
    aws = eks_account()
    addons_answer(
        aws, TRAINING_OPERATOR, [offered(VERSIONS[TRAINING_OPERATOR], requiresConfiguration=True)]
    )
    schema_answer(aws, TRAINING_OPERATOR, {"type": "object", "required": ["role"]})
    ((level, _, message),) = problems(aws, EKS)
    assert level == "FAIL"
    assert "'role' is a required property" in message
