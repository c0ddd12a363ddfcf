"""Preflight checks of managed MLflow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tools.accounts import APPLIED_QUOTAS, deployed_stacks, empty_account
from tests.tools.answering_aws import ACCOUNT, AnsweringAws
from tests.tools.cluster_files import shipped, shipped_eks
from tools.preflight.finding import Finding
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.sagemaker_services import check_mlflow

SLURM = shipped("slurm")
WITH_SERVER = shipped("slurm-p5")
WITH_APP = shipped_eks("eks-p5")
SERVERS = "Number of Tracking Servers"
APPS = "Maximum number of MLflow Apps"


def found(aws: AnsweringAws, cluster: Any) -> list[Finding]:
    return list(check_mlflow(ReadOnlyAws(aws.session), cluster))


def there(aws: AnsweringAws, *names: str) -> None:
    """Return an account with servers and apps of these names."""
    arn = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:mlflow"
    aws.answer(
        "sagemaker",
        "ListMlflowTrackingServers",
        {
            "TrackingServerSummaries": [
                {"TrackingServerName": name, "TrackingServerArn": f"{arn}-tracking-server/{name}"}
                for name in names
            ]
        },
    )
    apps = [{"Name": name, "Arn": f"{arn}-app/app-{name}", "Status": "Created"} for name in names]
    gone = {"Name": "gone", "Arn": f"{arn}-app/app-gone", "Status": "Deleted"}
    aws.answer("sagemaker", "ListMlflowApps", {"Summaries": [*apps, gone]})


def with_quotas(aws: AnsweringAws, **values: float) -> None:
    quotas = APPLIED_QUOTAS | {"Rate of CreateMlflowApp requests for MLflow Apps": 1} | values
    listed = [{"QuotaName": name, "Value": float(value)} for name, value in quotas.items()]
    aws.answer("service-quotas", "ListServiceQuotas", {"Quotas": listed})


def test_skips_a_cluster_without_mlflow() -> None:
    aws = empty_account(SLURM)
    assert found(aws, SLURM) == [] and aws.calls == []


@pytest.mark.parametrize("cluster", [WITH_SERVER, WITH_APP], ids=["tracking_server", "app"])
def test_checks_the_quota(cluster: Any) -> None:
    aws = empty_account(cluster)
    there(aws, "one", "two")
    (free,) = found(aws, cluster)
    assert (free.level, free.message) == (
        "OK",
        "2 exist; Service Quotas has no limit for this kind",
    )
    for quota, level in ((3, "OK"), (2, "FAIL")):
        with_quotas(aws, **{SERVERS: quota, APPS: quota})
        (judged,) = found(aws, cluster)
        assert judged.level == level
        assert judged.subject == f"quota {SERVERS if cluster is WITH_SERVER else APPS}"
        assert "2 in use" in judged.message


@pytest.mark.parametrize("cluster", [WITH_SERVER, WITH_APP], ids=["tracking_server", "app"])
def test_an_existing_resource_needs_no_quota(cluster: Any) -> None:
    aws = empty_account(cluster)
    there(aws, cluster.name)
    with_quotas(aws, **{SERVERS: 1, APPS: 1})
    (stack,) = {f"{cluster.name}-{cluster.scheduler}-storage"}
    deployed_stacks(aws, {stack: "UPDATE_COMPLETE"})
    (own,) = found(aws, cluster)
    assert (own.level, own.message) == ("OK", "this cluster's own")


def test_names_of_servers_must_be_free_and_names_of_apps_need_not() -> None:
    aws = empty_account(WITH_SERVER)
    there(aws, WITH_SERVER.name)
    taken, _ = found(aws, WITH_SERVER)
    assert (taken.level, taken.subject) == ("FAIL", f"MLflow tracking server {WITH_SERVER.name}")
    assert f"--tracking-server-name {WITH_SERVER.name}" in taken.action
    aws = empty_account(WITH_APP)
    there(aws, WITH_APP.name)
    assert [finding.level for finding in found(aws, WITH_APP)] == ["OK"]
