import subprocess
import sys
from pathlib import Path

import pytest

from config.cluster import zone_ids
from tests.tools.accounts import deployed_stacks, empty_account
from tests.tools.answering_aws import AnsweringAws, Refusal
from tests.tools.cluster_files import shipped
from tests.tools.json_documents import RunJson
from tests.tools.preflight.report import findings, problems
from tools.preflight import __main__ as command
from tools.preflight.read_only_aws import READING, ReadOnlyAws

SLURM = shipped("slurm")


def test_a_ready_account_has_nothing_to_fix() -> None:
    found = findings(empty_account(SLURM), SLURM)
    assert {finding.level for finding in found} == {"OK"}
    subjects = {finding.subject for finding in found}
    assert {
        "credentials",
        "region",
        "CDK bootstrap",
        "stack esm2-slurm-slurm-hyperpod",
        "quota ml.g5.8xlarge for cluster usage",
        "quota Lustre Persistent_2 storage capacity",
        "quota EC2-VPC Elastic IPs",
        f"zone {zone_ids(SLURM)[0]}",
        "offer workers",
        "bucket sagemaker-esm2-slurm-123456789012-us-west-2",
    } <= subjects


@pytest.mark.parametrize("ready", [True, False])
def test_calls_only_reads(ready: bool) -> None:
    aws = empty_account(SLURM)
    if not ready:
        names = ("network", "storage", "hyperpod")
        deployed_stacks(
            aws, {f"esm2-slurm-slurm-{name}": "UPDATE_ROLLBACK_FAILED" for name in names}
        )
        aws.answer("sagemaker", "DescribeCluster", Refusal("AccessDeniedException"))
    findings(aws, SLURM)
    assert len(aws.calls) > 15
    for service, operation in aws.calls:
        assert operation.startswith(("Get", "List", "Describe", "Head")), f"{service} {operation}"


def test_rejects_a_write_before_it_reaches_aws() -> None:
    aws = AnsweringAws("us-west-2")
    with pytest.raises(AssertionError, match="not a read"):
        ReadOnlyAws(aws.session).call("cloudformation", "delete_stack", StackName="esm2-slurm")
    assert aws.calls == []
    assert {"get", "list", "describe", "head", "simulate"} == READING


def test_names_every_missing_permission_and_runs_all_other_checks() -> None:
    aws = empty_account(SLURM)
    allowed = {("sts", "GetCallerIdentity"), ("ec2", "DescribeRegions")}
    for service, operation in set(aws.answers) - allowed:
        denied = "UnauthorizedOperation" if service == "ec2" else "AccessDeniedException"
        aws.answer(service, operation, Refusal("403" if service == "s3" else denied, status=403))
    found = [finding for finding in findings(aws, SLURM) if finding.level != "OK"]
    assert {finding.level for finding in found} == {"UNKNOWN"}
    named = " ".join(finding.action for finding in found)
    for action in (
        "ssm:GetParameter",
        "ssm:DescribeDocument",
        "cloudformation:DescribeStacks",
        "servicequotas:ListAWSDefaultServiceQuotas",
        "fsx:DescribeFileSystems",
        "ec2:DescribeAvailabilityZones",
        "ec2:DescribeInstanceTypeOfferings",
        "sagemaker:DescribeCluster",
        "s3:ListBucket",
        "ecr:DescribeRepositories",
        "logs:DescribeLogGroups",
    ):
        assert f"add {action} " in named


def test_stops_without_credentials() -> None:
    aws = empty_account(SLURM)
    aws.answer("sts", "GetCallerIdentity", Refusal("ExpiredToken"))
    ((level, subject, message),) = problems(aws, SLURM)
    assert (level, subject) == ("FAIL", "credentials")
    assert "expired" in message
    assert aws.calls == [("sts", "GetCallerIdentity")]


def test_a_disabled_region_rejects_the_credentials() -> None:
    aws = empty_account(SLURM)
    aws.answer("sts", "GetCallerIdentity", Refusal("InvalidClientTokenId"))
    ((_, _, message),) = problems(aws, SLURM)
    assert "has not enabled the region" in message


def test_throttling_is_reported_as_not_checked() -> None:
    aws = empty_account(SLURM)
    for code in ("RequestLimitExceeded", "ThrottlingException"):
        aws.answer("fsx", "DescribeFileSystems", Refusal(code, "Rate exceeded"))
        ((level, subject, message),) = problems(aws, SLURM)
        assert (level, subject) == ("UNKNOWN", "quotas of file systems")
        assert "Rate exceeded" in message


def test_stops_if_credentials_expire() -> None:
    aws = empty_account(SLURM)
    aws.answer("ssm", "GetParameter", Refusal("ExpiredTokenException"))
    ((level, subject, message),) = problems(aws, SLURM)
    assert (level, subject) == ("FAIL", "credentials")
    assert "expired" in message
    assert aws.calls[-1] == ("ssm", "GetParameter")


@pytest.mark.parametrize("num_denied", [1, 2])
def test_unknown_findings_are_not_reported_as_ready(
    num_denied: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aws = empty_account(SLURM)
    for service, operation in [("ssm", "GetParameter"), ("ecr", "DescribeRepositories")][
        :num_denied
    ]:
        aws.answer(service, operation, Refusal("AccessDeniedException"))
    monkeypatch.setattr(command, "open_session", lambda region, profile: aws.session)
    monkeypatch.setattr(sys, "argv", ["preflight"])
    monkeypatch.chdir(Path(__file__).parents[3])
    assert command.main() == 3
    summary = capsys.readouterr().out.splitlines()[-1]
    checks = "1 check" if num_denied == 1 else "2 checks"
    assert f"0 FAIL: {checks} could not be made" in summary


@pytest.mark.parametrize("ready", [True, False])
def test_exit_status_and_output(
    ready: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aws = empty_account(SLURM)
    if not ready:
        aws.answer("ssm", "GetParameter", Refusal("ParameterNotFound"))
    monkeypatch.setattr(command, "open_session", lambda region, profile: aws.session)
    monkeypatch.setattr(sys, "argv", ["preflight"])
    monkeypatch.chdir(Path(__file__).parents[3])
    assert command.main() == (0 if ready else 1)
    output = capsys.readouterr().out
    assert ("0 FAIL: ready to deploy" in output) is ready
    assert ("make bootstrap CLUSTER=" in output) is not ready


@pytest.mark.parametrize(
    ("refused", "status", "ready"), [("", 0, True), ("NotFound", 1, False), ("Denied", 3, None)]
)
def test_findings_as_json(
    refused: str,
    status: int,
    ready: bool | None,
    monkeypatch: pytest.MonkeyPatch,
    run_json: RunJson,
) -> None:
    aws = empty_account(SLURM)
    if refused:
        codes = {"NotFound": "ParameterNotFound", "Denied": "AccessDeniedException"}
        aws.answer("ssm", "GetParameter", Refusal(codes[refused]))
    monkeypatch.setattr(command, "open_session", lambda region, profile: aws.session)
    monkeypatch.chdir(Path(__file__).parents[3])
    document = run_json(command.main)
    assert document["exit_status"] == status and document["result"]["ready"] is ready
    levels = {finding["level"] for finding in document["result"]["findings"]}
    assert ("FAIL" in levels) is (status == 1) and ("UNKNOWN" in levels) is (status == 3)


def test_a_missing_file_is_an_error_without_a_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tools.preflight", "--cluster", "clusters/none.yaml"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: clusters/none.yaml: no such file")
    assert "Traceback" not in ended.stderr
