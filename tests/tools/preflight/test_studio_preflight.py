"""Preflight checks of SageMaker Studio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from config.slurm_cluster import SlurmCluster
from tests.tools.accounts import deployed_stacks, empty_account
from tests.tools.cluster_files import shipped
from tests.tools.preflight.report import findings, problems

TRAIL = {"Name": "all", "TrailARN": "arn:aws:cloudtrail:us-west-2:123456789012:trail/all"}


def studied(**studio: Any) -> SlurmCluster:
    return SlurmCluster.model_validate({**shipped("slurm").model_dump(), "studio": studio})


def of_studio(
    cluster: SlurmCluster, *, trails: Sequence[bool] = (), instances: int = 0
) -> list[tuple[str, str]]:
    """Return levels and messages for an account whose trails log or do not log."""
    aws = empty_account(cluster)
    named = [
        {**TRAIL, "TrailARN": f"{TRAIL['TrailARN']}-{number}"} for number in range(len(trails))
    ]
    aws.answer("cloudtrail", "DescribeTrails", {"trailList": named})
    aws.answer(
        "cloudtrail",
        "GetTrailStatus",
        lambda parameters: {"IsLogging": trails[int(parameters["Name"].rsplit("-", 1)[1])]},
    )
    found = [{"InstanceArn": f"arn:aws:sso:::instance/ssoins-{n:016d}"} for n in range(instances)]
    aws.answer("sso-admin", "ListInstances", {"Instances": found})
    return [(one.level, one.message) for one in findings(aws, cluster) if one.subject == "Studio"]


def test_skips_a_cluster_without_studio() -> None:
    cluster = shipped("slurm")
    assert "Studio" not in {one.subject for one in findings(empty_account(cluster), cluster)}


def test_a_shared_partition_and_iam_sign_in_need_nothing() -> None:
    assert of_studio(studied()) == []


def test_domains_and_profiles_are_counted() -> None:
    cluster = studied(profiles=[{"name": "ada"}, {"name": "ben"}])
    aws = empty_account(cluster)
    aws.answer(
        "sagemaker",
        "ListDomains",
        {"Domains": [{"DomainId": f"d-{number}"} for number in range(5)]},
    )
    profiles = [{"UserProfileName": f"p{number}"} for number in range(59)]
    aws.answer("sagemaker", "ListUserProfiles", {"UserProfiles": profiles})
    assert problems(aws, cluster) == [
        ("FAIL", "quota Total domains", "1 needed, 5 in use, the quota is 5"),
        (
            "FAIL",
            "quota Maximum number of Studio user profiles allowed per account",
            "2 needed, 59 in use, the quota is 60",
        ),
    ]
    deployed_stacks(aws, {"esm2-slurm-slurm-studio": "CREATE_COMPLETE"})
    assert problems(aws, cluster) == []


@pytest.mark.parametrize(("quota", "level"), [(0, "WARN"), (1, "WARN"), (2, "OK")])
def test_warns_if_the_quota_is_below_the_number_of_spaces(quota: int, level: str) -> None:
    cluster = studied(instance_type="ml.g5.xlarge", profiles=[{"name": "ada"}, {"name": "ben"}])
    aws = empty_account(cluster)
    name = "Studio JupyterLab Apps running on ml.g5.xlarge instances"
    listed = {"Quotas": [{"QuotaName": name, "Value": float(quota)}]}
    aws.answer("service-quotas", "ListServiceQuotas", listed)
    [found] = [one for one in findings(aws, cluster) if one.subject == "Studio"]
    assert (found.level, found.message) == (
        level,
        f"2 spaces of ml.g5.xlarge may run at once, the quota is {quota}",
    )
    assert level == "OK" or f"request 2 for '{name}'" in found.action


def test_a_trail_reports_new_profiles() -> None:
    [(level, message)] = of_studio(studied(partitions="per_profile"), trails=[False, True])
    assert (level, message) == ("OK", "trail all reports new profiles")


@pytest.mark.parametrize("trails", [[], [False]])
def test_warns_that_profiles_wait_without_a_trail(trails: list[bool]) -> None:
    [(level, message)] = of_studio(studied(partitions="per_profile"), trails=trails)
    assert level == "WARN" and "up to 15 minutes" in message


@pytest.mark.parametrize(("instances", "level"), [(0, "FAIL"), (1, "OK")])
def test_identity_center_must_be_in_the_region(instances: int, level: str) -> None:
    [(found, message)] = of_studio(studied(sign_in="identity_center"), instances=instances)
    assert found == level and "us-west-2" in message
