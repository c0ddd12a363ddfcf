from pathlib import Path
from typing import Any

import pytest

from tests.tools.accounts import cluster_description, deployed_stacks, empty_account
from tests.tools.answering_aws import Parameters, Refusal
from tests.tools.cluster_files import shipped
from tests.tools.preflight.report import findings, problems
from tools.preflight import account

SLURM = shipped("slurm")
NAMES = ("network", "storage", "hyperpod")
ALL = {f"esm2-slurm-slurm-{name}": "UPDATE_COMPLETE" for name in NAMES}
NODE_LOG = "/aws/sagemaker/Clusters/esm2-slurm/nodes"


def log_groups(parameters: Parameters) -> dict[str, Any]:
    prefix = parameters["logGroupNamePrefix"]
    return {"logGroups": [{"logGroupName": prefix}, {"logGroupName": f"{prefix}-other"}]}


def log_groups_of_storage(parameters: Parameters) -> dict[str, Any]:
    return (
        {"logGroups": []}
        if parameters["logGroupNamePrefix"] == NODE_LOG
        else log_groups(parameters)
    )


TAKEN = [
    (
        "sagemaker",
        "DescribeCluster",
        cluster_description("esm2-slurm", []),
        "name of cluster esm2-slurm",
    ),
    ("s3", "HeadBucket", {}, "bucket sagemaker-esm2-slurm-123456789012-us-west-2"),
    ("ecr", "DescribeRepositories", {"repositories": []}, "image repository esm2-slurm/training"),
    (
        "ssm",
        "DescribeDocument",
        {"Document": {"Name": "esm2-slurm-shell"}},
        "SSM document esm2-slurm-shell",
    ),
]


@pytest.mark.parametrize(("service", "operation", "answer", "subject"), TAKEN)
def test_a_taken_name_fails_unless_it_is_the_clusters_own(
    service: str, operation: str, answer: dict[str, Any], subject: str
) -> None:
    aws = empty_account(SLURM)
    aws.answer(service, operation, answer)
    assert problems(aws, SLURM) == [("FAIL", subject, "taken, and not by this cluster's stacks")]
    deployed_stacks(aws, ALL)
    aws.answer("sagemaker", "DescribeCluster", cluster_description("esm2-slurm", []))
    assert problems(aws, SLURM) == []
    (found,) = [finding for finding in findings(aws, SLURM) if finding.subject == subject]
    assert found.message == "this cluster's own"


def test_kept_resources_of_a_destroyed_cluster_do_not_block_a_deployment() -> None:
    aws = empty_account(SLURM)
    for service, operation, answer, subject in TAKEN:
        if "image" in subject or "bucket" in subject:
            aws.answer(service, operation, answer)
    aws.answer("logs", "DescribeLogGroups", log_groups_of_storage)
    deployed_stacks(
        aws, {name: status for name, status in ALL.items() if not name.endswith("hyperpod")}
    )
    assert problems(aws, SLURM) == []


def test_advice_contains_no_command_that_deletes_images() -> None:
    aws = empty_account(SLURM)
    aws.answer("ecr", "DescribeRepositories", {"repositories": []})
    (found,) = [finding for finding in findings(aws, SLURM) if finding.level == "FAIL"]
    assert "change `name`" in found.action
    assert "delete-repository" not in found.action


def test_reports_a_taken_alias() -> None:
    p5 = shipped("slurm-p5")
    aws = empty_account(p5)
    aws.answer("kms", "ListAliases", {"Aliases": [{"AliasName": "alias/esm2-p5-storage"}]})
    assert [subject for _, subject, _ in problems(aws, p5)] == ["KMS alias/esm2-p5-storage"]
    deployed_stacks(aws, {f"esm2-p5-slurm-{name}": "CREATE_COMPLETE" for name in NAMES})
    aws.answer("sagemaker", "DescribeCluster", cluster_description("esm2-p5", []))
    assert problems(aws, p5) == []


def test_log_groups_are_compared_by_their_whole_name() -> None:
    aws = empty_account(SLURM)
    other = {"logGroups": [{"logGroupName": "/aws/fsx/esm2-slurm-lustre-2"}]}
    aws.answer("logs", "DescribeLogGroups", other)
    assert problems(aws, SLURM) == []
    aws.answer("logs", "DescribeLogGroups", log_groups)
    assert [subject for _, subject, _ in problems(aws, SLURM)] == [
        "log group /aws/fsx/esm2-slurm-lustre",
        "log group /aws/vendedlogs/prometheus/esm2-slurm",
        f"log group {NODE_LOG}",
    ]


def test_reports_a_log_group_left_by_nodes() -> None:
    aws = empty_account(SLURM)
    aws.answer("logs", "DescribeLogGroups", log_groups)
    deployed_stacks(
        aws, {name: status for name, status in ALL.items() if not name.endswith("hyperpod")}
    )
    (found,) = [finding for finding in findings(aws, SLURM) if finding.level == "FAIL"]
    assert found.subject == f"log group {NODE_LOG}"
    assert f"delete-log-group --log-group-name {NODE_LOG}" in found.action


@pytest.mark.parametrize(
    ("status", "message", "action"),
    [
        (
            "ROLLBACK_COMPLETE",
            "its creation failed (ROLLBACK_COMPLETE)",
            "delete-stack --stack-name",
        ),
        ("UPDATE_ROLLBACK_FAILED", "an update could not be undone", "continue-update-rollback"),
        ("UPDATE_IN_PROGRESS", "a change is in progress (UPDATE_IN_PROGRESS)", "wait"),
        ("DELETE_FAILED", "its deletion failed", "make teardown"),
    ],
)
def test_reports_stacks_that_cannot_be_updated(status: str, message: str, action: str) -> None:
    aws = empty_account(SLURM)
    if status != "ROLLBACK_COMPLETE":
        aws.answer("sagemaker", "DescribeCluster", cluster_description("esm2-slurm", []))
    deployed_stacks(aws, ALL | {"esm2-slurm-slurm-hyperpod": status})
    (found,) = [finding for finding in findings(aws, SLURM) if finding.level != "OK"]
    assert (found.level, found.subject) == ("FAIL", "stack esm2-slurm-slurm-hyperpod")
    assert message in found.message
    assert action in found.action


@pytest.mark.parametrize(
    "status", ["CREATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "REVIEW_IN_PROGRESS"]
)
def test_accepts_stacks_that_can_be_updated(status: str) -> None:
    aws = empty_account(SLURM)
    deployed_stacks(aws, dict.fromkeys(ALL, status))
    aws.answer("sagemaker", "DescribeCluster", cluster_description("esm2-slurm", []))
    if status == "REVIEW_IN_PROGRESS":
        aws.answer("sagemaker", "DescribeCluster", Refusal("ResourceNotFound"))
    assert problems(aws, SLURM) == []


@pytest.mark.parametrize(("version", "level"), [("5", "FAIL"), ("6", "OK"), ("30", "OK")])
def test_bootstrap_has_a_minimum_version(version: str, level: str) -> None:
    aws = empty_account(SLURM)
    aws.answer("ssm", "GetParameter", {"Parameter": {"Value": version}})
    (found,) = [finding for finding in findings(aws, SLURM) if finding.subject == "CDK bootstrap"]
    assert found.level == level


def test_the_qualifier_of_the_bootstrap_comes_from_cdk_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cdk.json").write_text('{"context": {"@aws-cdk/core:bootstrapQualifier": "myorg"}}')
    monkeypatch.setattr(account, "CDK_SETTINGS", tmp_path / "cdk.json")
    aws = empty_account(SLURM)
    asked: list[Any] = []

    def parameter(asks: Parameters) -> dict[str, Any]:
        asked.append(asks["Name"])
        return {"Parameter": {"Value": "30"}}

    aws.answer("ssm", "GetParameter", parameter)
    assert problems(aws, SLURM) == []
    assert asked == ["/cdk-bootstrap/myorg/version"]
    aws = empty_account(SLURM)
    aws.answer("ssm", "GetParameter", Refusal("ParameterNotFound"))
    ((level, subject, message),) = problems(aws, SLURM)
    assert (level, subject) == ("FAIL", "CDK bootstrap")
    assert "not bootstrapped in us-west-2 with the qualifier myorg" in message


@pytest.mark.parametrize("state", ["not-opted-in", None])
def test_a_region_must_be_enabled(state: str | None) -> None:
    aws = empty_account(SLURM)
    regions = [{"RegionName": "us-west-2", "OptInStatus": state}] if state else []
    aws.answer("ec2", "DescribeRegions", {"Regions": regions})
    ((level, subject, message),) = problems(aws, SLURM)
    assert (level, subject) == ("FAIL", "region")
    assert message.startswith("us-west-2 is not enabled")


def test_warns_of_root_credentials() -> None:
    aws = empty_account(SLURM)
    root = {
        "Account": "123456789012",
        "Arn": "arn:aws:iam::123456789012:root",
        "UserId": "123456789012",
    }
    aws.answer("sts", "GetCallerIdentity", root)
    assert [(level, subject) for level, subject, _ in problems(aws, SLURM)] == [
        ("WARN", "credentials")
    ]


def test_a_bucket_of_another_account_is_not_free() -> None:
    aws = empty_account(SLURM)
    aws.answer("s3", "HeadBucket", Refusal("403", status=403))
    ((level, subject, _),) = problems(aws, SLURM)
    assert (level, subject) == ("UNKNOWN", "name of the bucket")
