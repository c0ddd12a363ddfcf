"""Preflight checks for clusters on EKS."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from config.eks_cluster import EksCluster
from config.facts.addons import OBSERVABILITY, VPC_CNI
from manifests.charts import chart_folder
from tests.tools.accounts import cluster_description, deployed_stacks
from tests.tools.answering_aws import ACCOUNT, Refusal
from tests.tools.cluster_files import shipped_eks, with_group
from tests.tools.preflight.eks_accounts import (
    ACCESS,
    EKS,
    P5,
    REPOSITORY,
    ROLE,
    STACKS,
    VERSIONS,
    eks_account,
    role,
    version,
)
from tests.tools.preflight.report import findings, problems
from tools.preflight import __main__ as command
from tools.preflight import chart_types
from tools.preflight.kubernetes_version import check_version
from tools.preflight.read_only_aws import ReadOnlyAws

pytestmark = pytest.mark.usefixtures("approved")


@pytest.mark.usefixtures("all_checks")
@pytest.mark.parametrize("cluster", [EKS, P5], ids=["eks", "eks-p5"])
def test_a_ready_account_has_nothing_to_fix(cluster: EksCluster) -> None:
    aws = eks_account(cluster)
    found = findings(aws, cluster)
    assert [finding for finding in found if finding.level != "OK"] == []
    messages = {(finding.subject, finding.message) for finding in found}
    assert ("add-on vpc-cni", "its schema accepts the configuration") in messages
    assert (f"add-on {OBSERVABILITY}", "its schema accepts the configuration") in messages
    assert {
        "quota ml.g5.8xlarge for cluster usage" if cluster is EKS else "training plan esm2-p5",
        "synthesis",
        "Kubernetes 1.34",
        "quota EKS clusters per Region",
        f"name of EKS cluster {cluster.name}",
        "role platform",
        f"log group /aws/eks/{cluster.name}/cluster",
        f"log group /aws/fsx/{cluster.name}-lustre",
    } <= {finding.subject for finding in found}
    assert not any("SSM document" in finding.subject for finding in found)
    for service, operation in aws.calls:
        assert operation.startswith(("Get", "List", "Describe", "Head")), f"{service} {operation}"


@pytest.mark.parametrize(
    ("versions", "level", "message"),
    [
        ([version("1.35")], "FAIL", "EKS does not offer it in us-west-2; offered are 1.35"),
        (
            [version("1.34", "UNSUPPORTED"), version("1.35"), version("1.9")],
            "FAIL",
            "EKS does not offer it in us-west-2; offered are 1.9, 1.35",
        ),
        (
            [version("1.34", "EXTENDED_SUPPORT")],
            "WARN",
            "in extended support, for which EKS bills six times the price per hour, until 2027-12-02",
        ),
    ],
)
def test_kubernetes_versions(versions: list[dict[str, Any]], level: str, message: str) -> None:
    aws = eks_account()
    aws.answer("eks", "DescribeClusterVersions", {"clusterVersions": versions})
    assert problems(aws, EKS) == [(level, "Kubernetes 1.34", message)]


def test_a_version_that_aws_added_later_is_a_warning() -> None:
    later = shipped_eks("eks", kubernetes={**ACCESS, "version": "1.35"})
    (offer, warning) = check_version(ReadOnlyAws(eks_account().session), later)
    assert (offer.level, warning.level) == ("OK", "WARN")
    assert "Whether HyperPod runs 1.35 is not checked" in warning.message


@pytest.mark.parametrize(
    ("there", "level"), [("1.33", None), ("1.34", None), ("1.35", "FAIL"), ("1.32", "FAIL")]
)
def test_a_cluster_can_only_be_raised_by_one_version(there: str, level: str | None) -> None:
    aws = eks_account()
    deployed_stacks(aws, STACKS)
    aws.answer("sagemaker", "DescribeCluster", cluster_description(EKS.name, []))
    aws.answer("eks", "DescribeCluster", {"cluster": {"name": EKS.name, "version": there}})
    found = problems(aws, EKS)
    assert [name for name, _, _ in found] == ([level] if level else [])
    if level:
        assert (
            f"the cluster runs {there}, which can be raised by one version at a time" in found[0][2]
        )


@pytest.mark.parametrize(
    ("answer", "level", "message"),
    [
        (Refusal("NoSuchEntity"), "FAIL", f"{ROLE} does not exist"),
        (
            {"Role": role(ROLE.replace("teams/", ""))},
            "FAIL",
            f"the file says {ROLE}, it is {ROLE.replace('teams/', '')}",
        ),
    ],
)
def test_principals_must_exist(answer: Any, level: str, message: str) -> None:
    aws = eks_account()
    aws.answer("iam", "GetRole", answer)
    assert problems(aws, EKS) == [(level, "role platform", message)]


def test_users_and_principals_of_other_accounts() -> None:
    user = f"arn:aws:iam::{ACCOUNT}:user/ada"
    other = "arn:aws:iam::210987654321:role/platform"
    entries = [{"principal_arn": arn, "level": "view"} for arn in (user, other)]
    cluster = shipped_eks("eks", kubernetes={"access": entries})
    aws = eks_account(cluster)
    found = {
        "Path": "/",
        "UserName": "ada",
        "UserId": "A" * 16,
        "Arn": user,
        "CreateDate": datetime.now(UTC),
    }
    aws.answer("iam", "GetUser", {"User": found})
    ((level, subject, message),) = problems(aws, cluster)
    assert (level, subject) == ("UNKNOWN", "role platform")
    assert "it belongs to account 210987654321" in message


def test_refuses_a_file_without_access_entries() -> None:
    cluster = shipped_eks("eks")
    assert problems(eks_account(cluster), cluster) == [
        (
            "FAIL",
            "kubernetes.access",
            "gives no one access, so no one can use kubectl, or submit or view jobs",
        )
    ]


def test_someone_without_access_is_no_user() -> None:
    gone = {"principal_arn": f"arn:aws:iam::{ACCOUNT}:role/gone", "level": "none"}
    of_others = shipped_eks("eks", kubernetes={"access": [gone, *ACCESS["access"]]})
    assert problems(eks_account(of_others), of_others) == []
    alone = shipped_eks("eks", kubernetes={"access": [gone]})
    (problem,) = problems(eks_account(alone), alone)
    assert problem[:2] == ("FAIL", "kubernetes.access")


def test_reports_a_region_without_room_for_another_cluster() -> None:
    aws = eks_account()
    aws.answer("eks", "ListClusters", {"clusters": ["one", "two"]})
    assert problems(aws, EKS) == [
        ("FAIL", "quota EKS clusters per Region", "1 needed, 2 in use, the quota is 2")
    ]


def test_reports_taken_names() -> None:
    aws = eks_account()
    aws.answer("eks", "DescribeCluster", {"cluster": {"name": EKS.name, "version": "1.34"}})
    log = f"/aws/eks/{EKS.name}/cluster"
    aws.answer(
        "logs",
        "DescribeLogGroups",
        lambda asked: {
            "logGroups": [{"logGroupName": log}] if asked["logGroupNamePrefix"] == log else []
        },
    )
    taken = "taken, and not by this cluster's stacks"
    assert problems(aws, EKS) == [
        ("FAIL", "name of EKS cluster esm2-eks", taken),
        ("FAIL", f"log group {log}", taken),
    ]
    deployed_stacks(aws, STACKS)
    aws.answer("sagemaker", "DescribeCluster", cluster_description(EKS.name, []))
    assert problems(aws, EKS) == []


def test_warns_if_karpenter_may_exceed_the_quota() -> None:
    # The stack's own pods need two nodes that Karpenter does not end.
    cluster = with_group(EKS, "system", num_instances=2)
    cluster = with_group(cluster, "workers", num_instances=0, max_instances=5)
    cluster = cluster.model_copy(update={"autoscaling": "karpenter"})
    assert problems(eks_account(cluster), cluster) == [
        (
            "WARN",
            "quota ml.g5.8xlarge for cluster usage",
            "Karpenter may request 5 instances, 0 are in use, the quota is 4",
        )
    ]
    fitting = with_group(cluster, "workers", max_instances=4)
    assert problems(eks_account(fitting), fitting) == []


@pytest.mark.parametrize(
    ("instance_type", "found"),
    [
        ("ml.g5.8xlarge", []),
        ("ml.trn1.32xlarge", []),
        (
            "ml.trn2.3xlarge",
            [
                (
                    "FAIL",
                    "its Neuron plugin does not support ml.trn2.3xlarge, so no job would get a device",
                )
            ],
        ),
        (
            "ml.g7e.48xlarge",
            [
                (
                    "WARN",
                    "its health monitoring does not support ml.g7e.48xlarge: faults of its accelerators are "
                    "not detected",
                )
            ],
        ),
    ],
)
def test_types_that_the_chart_supports(
    instance_type: str, found: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chart is a stand-in with some of the types of HyperPod's chart."""
    stand_ins = REPOSITORY / "tests" / "manifests" / "stand_ins"
    monkeypatch.setattr(chart_types, "chart_folder", lambda name: stand_ins / name)
    cluster = with_group(EKS, "workers", instance_type=instance_type)
    aws = ReadOnlyAws(eks_account(cluster).session)
    told = [(finding.level, finding.message) for finding in chart_types.check_chart(aws, cluster)]
    assert told == (found or [("OK", "supports the accelerated types of the file")])


@pytest.mark.parametrize("forgotten", [False, True], ids=["all images", "one forgotten"])
def test_images_of_the_chart_that_a_closed_network_reaches(
    forgotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the chart has another image than the table, nodes would wait for it in vain."""
    stand_ins = REPOSITORY / "tests" / "manifests" / "stand_ins"
    monkeypatch.setattr(chart_types, "chart_folder", lambda name: stand_ins / name)
    if forgotten:
        monkeypatch.setattr("manifests.chart_values.needed_images", lambda cluster: [])
    cluster = shipped_eks("eks", kubernetes={**ACCESS, "images": "image_repository"})
    aws = ReadOnlyAws(eks_account(cluster).session)
    found = list(chart_types.check_chart(aws, cluster))[-1]
    if forgotten:
        assert found.level == "FAIL"
        assert "nvcr.io/nvidia/k8s-device-plugin:v0.16.1 from elsewhere" in found.message
    else:
        assert (found.level, found.message) == ("OK", "its 3 images are in ECR of us-west-2")


def test_missing_permissions_are_named() -> None:
    aws = eks_account(P5)
    for service, operation in [key for key in aws.answers if key[0] in ("eks", "iam")]:
        aws.answer(service, operation, Refusal("AccessDeniedException", status=403))
    found = [finding for finding in findings(aws, P5) if finding.level != "OK"]
    assert {finding.level for finding in found} == {"UNKNOWN"}
    named = " ".join(finding.action for finding in found)
    for action in ("eks:DescribeAddonVersions", "eks:ListClusters", "iam:GetRole"):
        assert f"add {action} " in named


def test_the_command_with_a_real_synthesis(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine has no HyperPod chart."""
    monkeypatch.undo()
    aws = eks_account(EKS)
    monkeypatch.setattr(command, "open_session", lambda region, profile: aws.session)
    monkeypatch.setattr(
        "stacks.eks_hyperpod_stack.chart_folder", partial(chart_folder, cache=tmp_path)
    )
    monkeypatch.setattr(sys, "argv", ["preflight", "--cluster", "clusters/eks.yaml"])
    monkeypatch.chdir(REPOSITORY)
    assert command.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"OK       add-on vpc-cni: {VERSIONS[VPC_CNI]} is offered for Kubernetes 1.34" in lines
    users, wrong = [line for line in lines if line.startswith(("FAIL", "UNKNOWN"))]
    assert users.startswith("FAIL     kubernetes.access: gives no one access")
    assert wrong == (
        f"FAIL     synthesis: chart hyperpod is not in {tmp_path}; run make charts, which needs git and the "
        "internet"
    )
