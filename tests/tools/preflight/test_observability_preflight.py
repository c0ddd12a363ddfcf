"""Preflight checks of alerts and dashboards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.lifecycle.https_server import body, served
from tests.tools.accounts import deployed_stacks, empty_account
from tests.tools.answering_aws import AnsweringAws, Refusal
from tests.tools.cluster_files import shipped, shipped_eks
from tests.tools.conftest import METADATA
from tools.preflight import observability
from tools.preflight.finding import Finding
from tools.preflight.read_only_aws import ReadOnlyAws

SLURM = shipped("slurm")
P5 = shipped("slurm-p5")
EKS_P5 = shipped_eks("eks-p5")
TEAM = EKS_P5.observability.grafana.admins[0]
STORE = "d-0123456789"


def made(check: Callable[..., Any], aws: AnsweringAws, cluster: Any) -> list[Finding]:
    return list(check(ReadOnlyAws(aws.session), cluster))


def test_without_dashboards_only_metrics_are_checked() -> None:
    aws = empty_account(SLURM)
    for check in (
        observability.check_grafana_quota,
        observability.check_grafana_version,
        observability.check_identity_center,
        observability.check_saml,
    ):
        assert made(check, aws, SLURM) == []
    (quota,) = made(observability.check_metrics_quota, aws, SLURM)
    assert quota.level == "OK"


def test_reports_a_region_without_room_for_another_workspace() -> None:
    aws = empty_account(P5)
    workspace = {
        "alias": "a",
        "arn": "arn",
        "createdAt": 0,
        "status": {"statusCode": "ACTIVE"},
        "workspaceId": "ws-1",
    }
    aws.answer("amp", "ListWorkspaces", {"workspaces": [workspace] * 25})
    grafana = {
        "authentication": {"providers": ["SAML"]},
        "created": 0,
        "endpoint": "g.example.com",
        "grafanaVersion": "10.4",
        "id": "g-0123456789",
        "modified": 0,
        "status": "ACTIVE",
    }
    aws.answer("grafana", "ListWorkspaces", {"workspaces": [grafana] * 5})
    for check in (observability.check_metrics_quota, observability.check_grafana_quota):
        (found,) = made(check, aws, P5)
        assert found.level == "FAIL" and "in use, the quota is" in found.message
    # A deployed cluster has its workspaces.
    deployed_stacks(
        aws, {f"esm2-p5-slurm-{name}": "UPDATE_COMPLETE" for name in ("storage", "observability")}
    )
    assert made(observability.check_metrics_quota, aws, P5) == []
    assert made(observability.check_grafana_quota, aws, P5) == []


def test_the_version_of_a_new_workspace_must_be_offered() -> None:
    aws = empty_account(P5)
    assert [found.level for found in made(observability.check_grafana_version, aws, P5)] == ["OK"]
    aws.answer("grafana", "ListVersions", {"grafanaVersions": ["12.4", "13.1"]})
    (found,) = made(observability.check_grafana_version, aws, P5)
    assert found.level == "FAIL" and "version 12.4, 13.1" in found.message
    # An existing workspace keeps its version.
    deployed_stacks(aws, {"esm2-p5-slurm-observability": "UPDATE_COMPLETE"})
    assert made(observability.check_grafana_version, aws, P5) == []


@pytest.mark.parametrize("instances", [[], [{"Status": "DELETE_IN_PROGRESS"}]])
def test_identity_center_must_exist(instances: list[dict[str, Any]]) -> None:
    aws = empty_account(EKS_P5)
    aws.answer("sso-admin", "ListInstances", {"Instances": instances})
    (found,) = made(observability.check_identity_center, aws, EKS_P5)
    assert (found.level, found.subject) == ("FAIL", "Grafana")
    assert "observability.grafana.sign_in" in found.action


def test_people_must_exist_in_identity_center() -> None:
    aws = empty_account(EKS_P5)
    aws.answer(
        "sso-admin",
        "ListInstances",
        {"Instances": [{"Status": "ACTIVE", "IdentityStoreId": STORE}]},
    )
    aws.answer("identitystore", "DescribeGroup", Refusal("ResourceNotFoundException"))
    there, missing = made(observability.check_identity_center, aws, EKS_P5)
    assert (there.level, missing.level, missing.subject) == ("OK", "FAIL", f"Grafana, {TEAM}")
    principal = TEAM.partition("/")[2]
    group = {
        "GroupArn": f"arn:aws:identitystore:::group/{principal}",
        "GroupId": principal,
        "IdentityStoreId": STORE,
        "Revision": "1",
    }
    aws.answer("identitystore", "DescribeGroup", group)
    assert [found.level for found in made(observability.check_identity_center, aws, EKS_P5)] == [
        "OK"
    ]


def test_people_of_another_region_s_identity_center_are_not_looked_up() -> None:
    aws = empty_account(EKS_P5)
    instance = {"Status": "ACTIVE", "IdentityStoreId": STORE, "PrimaryRegion": "eu-west-1"}
    aws.answer("sso-admin", "ListInstances", {"Instances": [instance]})
    assert [found.level for found in made(observability.check_identity_center, aws, EKS_P5)] == [
        "OK"
    ]


@pytest.mark.parametrize(
    ("text", "status", "level", "says"),
    [
        (METADATA, 200, "OK", "people sign in through https://idp.example.com"),
        ("<html/>", 200, "FAIL", "holds html, not a provider's EntityDescriptor"),
        ("sign in first", 200, "FAIL", "is not XML"),
        ("gone", 404, "WARN", "cannot be read from here"),
    ],
)
def test_reads_the_metadata_of_the_identity_provider(
    text: str, status: int, level: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    grafana = P5.observability.grafana
    with served(body(text.encode(), status)) as url:
        saml = grafana.saml.model_copy(update={"metadata_url": url})
        watched = P5.observability.model_copy(
            update={"grafana": grafana.model_copy(update={"saml": saml})}
        )
        cluster = P5.model_copy(update={"observability": watched})
        (found,) = made(observability.check_saml, empty_account(P5), cluster)
    assert found.level == level and says in found.message
