"""What preflight asks beyond the checks of every cluster, when the cluster is on EKS."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from config.addons import ADDON_VERSIONS, OBSERVABILITY, TRAINING_OPERATOR, VPC_CNI
from config.chart_cache import chart_folder
from config.eks_cluster import EksCluster
from tests.tools.accounts import cluster_description, deployed_stacks, empty_account
from tests.tools.answering_aws import ACCOUNT, AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped_eks, with_group
from tests.tools.preflight.report import findings, problems
from tools import preflight
from tools.preflight import __main__ as command
from tools.preflight import chart_types, planned
from tools.preflight.read_only_aws import ReadOnlyAws

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests" / "golden"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/teams/platform"
ACCESS = {"access": [{"principal_arn": ROLE, "level": "cluster_admin"}]}
EKS = shipped_eks("eks", kubernetes=ACCESS)
P5 = shipped_eks("eks-p5", kubernetes=ACCESS)
EVERY_CLUSTERS = preflight.CHECKS
VERSIONS = ADDON_VERSIONS["1.34"]
STACKS = {f"esm2-eks-eks-{name}": "UPDATE_COMPLETE" for name in ("network", "storage", "hyperpod")}
LEVEL = {"type": "object", "properties": {"level": {"enum": ["BASIC", "ADVANCED", "DISABLED"]}}}
OBSERVABILITY_SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "additionalProperties": False,
    "required": ["ampWorkspace"],
    "properties": {
        "ampWorkspace": {
            "type": "object",
            "properties": {
                "arn": {"type": "string", "pattern": "^arn:aws:aps:"},
                "prometheusEndpoint": {"type": "string", "pattern": r"^https://[^/]+/workspaces/ws-[\w-]+$"},
            },
        },
        "amgWorkspace": {"type": "object"},
        "metricsProvider": {
            "type": "object",
            "properties": {"logging": {"type": "object", "properties": {"enabled": {"type": "boolean"}}}},
            "additionalProperties": LEVEL,
        },
    },
}
SCHEMAS = {
    # In EKS's form: a reference, and booleans as texts.
    VPC_CNI: {
        "$schema": "http://json-schema.org/draft-06/schema#",
        "$ref": "#/definitions/VpcCni",
        "definitions": {
            "VpcCni": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "enableNetworkPolicy": {"type": "string", "format": "boolean"},
                    "env": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            name: {"type": "string", "format": "integer"}
                            for name in ("MINIMUM_IP_TARGET", "WARM_IP_TARGET")
                        },
                    },
                },
            }
        },
    },
    OBSERVABILITY: OBSERVABILITY_SCHEMA,
}


def approved_template(cluster: EksCluster) -> dict[str, Any]:
    file = GOLDEN / cluster.name.removeprefix("esm2-") / "EksHyperPodStack.json"
    template: dict[str, Any] = json.loads(file.read_text())
    return template


@pytest.fixture(autouse=True)
def approved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The approved templates are what is synthesized; of the checks, those of EKS alone are made."""
    monkeypatch.setattr(
        planned, "synthesize", lambda cluster: planned.Synthesis(approved_template(cluster), [])
    )
    monkeypatch.setattr(preflight, "CHECKS", {})


@pytest.fixture
def all_checks(approved: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "CHECKS", EVERY_CLUSTERS)


def offered(version: str, *, default: bool = True, **changes: Any) -> dict[str, Any]:
    compatible = {"clusterVersion": "1.34", "platformVersions": ["*"], "defaultVersion": default}
    found = {
        "addonVersion": version,
        "architecture": ["amd64", "arm64"],
        "compatibilities": [compatible],
        "requiresConfiguration": False,
    }
    return found | changes


def eks_account(cluster: EksCluster = EKS) -> AnsweringAws:
    """An account that is ready for its first cluster on EKS."""
    aws = empty_account(cluster)

    def addon_versions(parameters: Parameters) -> dict[str, Any]:
        name = parameters["addonName"]
        assert parameters["kubernetesVersion"] == "1.34"
        return {"addons": [{"addonName": name, "addonVersions": [offered(VERSIONS[name])]}]}

    def configuration(parameters: Parameters) -> dict[str, Any]:
        schema = SCHEMAS[parameters["addonName"]]
        return {"addonName": parameters["addonName"], "configurationSchema": json.dumps(schema)}

    aws.answer("eks", "DescribeAddonVersions", addon_versions)
    aws.answer("eks", "DescribeAddonConfiguration", configuration)
    aws.answer("eks", "DescribeClusterVersions", {"clusterVersions": [version("1.34"), version("1.35")]})
    aws.answer("eks", "ListClusters", {"clusters": ["another"]})
    aws.answer("eks", "DescribeCluster", Refusal("ResourceNotFoundException"))
    aws.answer("iam", "GetRole", {"Role": role(ROLE)})
    aws.answer("sso-admin", "ListInstances", {"Instances": [{"Status": "ACTIVE"}]})
    default_quotas = aws.answers["service-quotas", "ListAWSDefaultServiceQuotas"]

    def quotas(parameters: Parameters) -> dict[str, Any]:
        if parameters["ServiceCode"] != "eks":
            return default_quotas(parameters)
        return {"Quotas": [{"QuotaName": "Clusters", "Value": 2.0}]}

    aws.answer("service-quotas", "ListAWSDefaultServiceQuotas", quotas)
    return aws


def version(name: str, status: str = "STANDARD_SUPPORT") -> dict[str, Any]:
    return {
        "clusterVersion": name,
        "versionStatus": status,
        "endOfStandardSupportDate": datetime(2026, 12, 2, tzinfo=UTC),
        "endOfExtendedSupportDate": datetime(2027, 12, 2, tzinfo=UTC),
    }


def role(arn: str) -> dict[str, Any]:
    name = arn.rpartition("/")[2]
    return {"Path": "/", "RoleName": name, "RoleId": "A" * 16, "Arn": arn, "CreateDate": datetime.now(UTC)}


@pytest.mark.usefixtures("all_checks")
@pytest.mark.parametrize("cluster", [EKS, P5], ids=["eks", "eks-p5"])
def test_an_account_that_is_ready_has_nothing_to_fix(cluster: EksCluster) -> None:
    aws = eks_account(cluster)
    found = findings(aws, cluster)
    assert [finding for finding in found if finding.level != "OK"] == []
    messages = {(finding.subject, finding.message) for finding in found}
    assert ("add-on vpc-cni", "its schema takes the configuration that it gets") in messages
    assert (f"add-on {OBSERVABILITY}", "its schema takes the configuration that it gets") in messages
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


def test_every_addon_of_the_template_is_asked_for() -> None:
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
    """Other versions of one add-on."""
    others = aws.answers["eks", "DescribeAddonVersions"]

    def versions(parameters: Parameters) -> dict[str, Any]:
        if parameters["addonName"] != name:
            return others(parameters)
        if isinstance(answer, Refusal):
            raise answer
        return {"addons": [{"addonName": name, "addonVersions": answer}]} if answer else {"addons": []}

    aws.answer("eks", "DescribeAddonVersions", versions)


def test_a_version_that_is_not_offered_names_those_that_are_and_the_table() -> None:
    aws = eks_account()
    newer = [offered(f"v1.3{minor}.0-eksbuild.1", default=minor == 7) for minor in range(9, 2, -1)]
    addons_answer(aws, VPC_CNI, newer)
    (found,) = [finding for finding in findings(aws, EKS) if finding.level != "OK"]
    assert (found.level, found.subject) == ("FAIL", "add-on vpc-cni")
    assert found.message == (
        f"{VERSIONS[VPC_CNI]} is not offered for Kubernetes 1.34 in us-west-2; there are "
        "v1.39.0-eksbuild.1, v1.38.0-eksbuild.1, v1.37.0-eksbuild.1, v1.36.0-eksbuild.1, v1.35.0-eksbuild.1 "
        "and 2 older"
    )
    assert found.action == "put one of them in config/addons.py, as EKS's default v1.37.0-eksbuild.1"


@pytest.mark.parametrize("answer", [[], Refusal("ResourceNotFoundException")])
def test_an_addon_that_the_region_does_not_have(answer: Any) -> None:
    aws = eks_account()
    addons_answer(aws, TRAINING_OPERATOR, answer)
    assert problems(aws, EKS) == [
        (
            "FAIL",
            f"add-on {TRAINING_OPERATOR}",
            "it is not offered for Kubernetes 1.34 in us-west-2",
        )
    ]


def test_an_addon_without_a_build_for_the_nodes() -> None:
    aws = eks_account()
    addons_answer(aws, VPC_CNI, [offered(VERSIONS[VPC_CNI], architecture=["arm64"])])
    assert problems(aws, EKS) == [
        ("FAIL", "add-on vpc-cni", f"{VERSIONS[VPC_CNI]} is for arm64, nodes are x86_64")
    ]


def schema_answer(aws: AnsweringAws, name: str, schema: Any) -> None:
    """Another schema of one add-on's configuration."""
    others = aws.answers["eks", "DescribeAddonConfiguration"]

    def configuration(parameters: Parameters) -> dict[str, Any]:
        if parameters["addonName"] != name:
            return others(parameters)
        return {"configurationSchema": schema if isinstance(schema, str) else json.dumps(schema)}

    aws.answer("eks", "DescribeAddonConfiguration", configuration)


def test_a_configuration_that_the_schema_refuses_says_where() -> None:
    """AWS's samples have logging in two places: the live schema tells which is right."""
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
    assert "metricsProvider.scalingMetrics.level: 'DISABLED' is not one of ['BASIC']" in found.message
    assert f"aws eks describe-addon-configuration --addon-name {OBSERVABILITY}" in found.action


@pytest.mark.parametrize(
    ("schema", "level", "message"),
    [
        ("", "WARN", "EKS has no schema for its configuration"),
        ("not json", "UNKNOWN", "could not be checked: the schema of its configuration cannot be read: "),
        ({"type": "no such type"}, "UNKNOWN", "could not be checked: the schema"),
    ],
)
def test_a_schema_that_says_nothing(schema: Any, level: str, message: str) -> None:
    aws = eks_account()
    schema_answer(aws, VPC_CNI, schema)
    ((found, subject, text),) = problems(aws, EKS)
    assert (found, subject) == (level, "add-on vpc-cni")
    assert text.startswith(message)


def test_an_addon_that_wants_a_configuration_and_gets_none() -> None:
    aws = eks_account()
    addons_answer(aws, TRAINING_OPERATOR, [offered(VERSIONS[TRAINING_OPERATOR], requiresConfiguration=True)])
    schema_answer(aws, TRAINING_OPERATOR, {"type": "object", "required": ["role"]})
    ((level, _, message),) = problems(aws, EKS)
    assert level == "FAIL"
    assert "'role' is a required property" in message


@pytest.mark.parametrize(
    ("versions", "level", "message"),
    [
        ([version("1.35")], "FAIL", "EKS does not offer it in us-west-2; there are 1.35"),
        (
            [version("1.34", "UNSUPPORTED"), version("1.35"), version("1.9")],
            "FAIL",
            "EKS does not offer it in us-west-2; there are 1.9, 1.35",
        ),
        (
            [version("1.34", "EXTENDED_SUPPORT")],
            "WARN",
            "in extended support, in which EKS bills a multiple for each hour, until 2027-12-02",
        ),
    ],
)
def test_kubernetes_versions(versions: list[dict[str, Any]], level: str, message: str) -> None:
    aws = eks_account()
    aws.answer("eks", "DescribeClusterVersions", {"clusterVersions": versions})
    assert problems(aws, EKS) == [(level, "Kubernetes 1.34", message)]


@pytest.mark.parametrize(
    ("there", "level"), [("1.33", None), ("1.34", None), ("1.35", "FAIL"), ("1.32", "FAIL")]
)
def test_a_cluster_goes_up_by_one_version(there: str, level: str | None) -> None:
    aws = eks_account()
    deployed_stacks(aws, STACKS)
    aws.answer("sagemaker", "DescribeCluster", cluster_description(EKS.name, []))
    aws.answer("eks", "DescribeCluster", {"cluster": {"name": EKS.name, "version": there}})
    found = problems(aws, EKS)
    assert [name for name, _, _ in found] == ([level] if level else [])
    if level:
        assert f"the cluster runs {there}, which goes up by one version at a time" in found[0][2]


@pytest.mark.parametrize(
    ("answer", "level", "message"),
    [
        (Refusal("NoSuchEntity"), "FAIL", f"there is no {ROLE}"),
        (
            {"Role": role(ROLE.replace("teams/", ""))},
            "FAIL",
            f"the file says {ROLE}, it is {ROLE.replace('teams/', '')}",
        ),
    ],
)
def test_who_may_use_it_exists(answer: Any, level: str, message: str) -> None:
    aws = eks_account()
    aws.answer("iam", "GetRole", answer)
    assert problems(aws, EKS) == [(level, "role platform", message)]


def test_users_and_principals_of_other_accounts() -> None:
    user, other = f"arn:aws:iam::{ACCOUNT}:user/ada", "arn:aws:iam::210987654321:role/platform"
    entries = [{"principal_arn": arn, "level": "view"} for arn in (user, other)]
    cluster = shipped_eks("eks", kubernetes={"access": entries})
    aws = eks_account(cluster)
    found = {"Path": "/", "UserName": "ada", "UserId": "A" * 16, "Arn": user, "CreateDate": datetime.now(UTC)}
    aws.answer("iam", "GetUser", {"User": found})
    ((level, subject, message),) = problems(aws, cluster)
    assert (level, subject) == ("UNKNOWN", "role platform")
    assert "it is of account 210987654321" in message


def test_a_file_that_lets_nobody_in_is_warned_of() -> None:
    cluster = shipped_eks("eks")
    assert problems(eks_account(cluster), cluster) == [
        (
            "WARN",
            "kubernetes.access",
            "nobody is named, so nobody can use kubectl, submit jobs or look at them",
        )
    ]


def test_a_region_full_of_clusters_takes_no_other() -> None:
    aws = eks_account()
    aws.answer("eks", "ListClusters", {"clusters": ["one", "two"]})
    assert problems(aws, EKS) == [
        ("FAIL", "quota EKS clusters per Region", "1 needed, 2 in use, the quota is 2")
    ]


def test_names_that_others_have() -> None:
    aws = eks_account()
    aws.answer("eks", "DescribeCluster", {"cluster": {"name": EKS.name, "version": "1.34"}})
    log = f"/aws/eks/{EKS.name}/cluster"
    aws.answer(
        "logs",
        "DescribeLogGroups",
        lambda asked: {"logGroups": [{"logGroupName": log}] if asked["logGroupNamePrefix"] == log else []},
    )
    taken = "taken, and not by this cluster's stacks"
    assert problems(aws, EKS) == [
        ("FAIL", "name of EKS cluster esm2-eks", taken),
        ("FAIL", f"log group {log}", taken),
    ]
    deployed_stacks(aws, STACKS)
    aws.answer("sagemaker", "DescribeCluster", cluster_description(EKS.name, []))
    assert problems(aws, EKS) == []


def test_what_karpenter_may_ask_for_beyond_the_quota_is_warned_of() -> None:
    cluster = with_group(EKS, "workers", num_instances=0, max_instances=5)
    cluster = cluster.model_copy(update={"autoscaling": "karpenter"})
    assert problems(eks_account(cluster), cluster) == [
        (
            "WARN",
            "quota ml.g5.8xlarge for cluster usage",
            "Karpenter may ask for 5 instances, 0 are in use, the quota is 4",
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
            [("FAIL", "its Neuron plugin does not know ml.trn2.3xlarge: no job would get a device")],
        ),
        (
            "ml.g7e.48xlarge",
            [
                (
                    "WARN",
                    "its health monitoring does not know ml.g7e.48xlarge: faults of its accelerators are not "
                    "found",
                )
            ],
        ),
    ],
)
def test_types_that_the_chart_knows(
    instance_type: str, found: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the stand-in, which has some of the types that HyperPod's chart has."""
    stand_ins = REPOSITORY / "tests" / "charts" / "stand_ins"
    monkeypatch.setattr(chart_types, "chart_folder", partial(chart_folder, stand_ins=stand_ins))
    cluster = with_group(EKS, "workers", instance_type=instance_type)
    aws = ReadOnlyAws(AnsweringAws("us-west-2").session)
    told = [(finding.level, finding.message) for finding in chart_types.check_types(aws, cluster)]
    assert told == (found or [("OK", "knows the accelerated types of the file")])


def test_missing_permissions_are_named() -> None:
    aws = eks_account(P5)
    for service, operation in [key for key in aws.answers if key[0] in ("eks", "iam")]:
        aws.answer(service, operation, Refusal("AccessDeniedException", status=403))
    found = [finding for finding in findings(aws, P5) if finding.level != "OK"]
    assert {finding.level for finding in found} == {"UNKNOWN"}
    named = " ".join(finding.action for finding in found)
    for action in ("eks:DescribeAddonVersions", "eks:ListClusters", "iam:GetRole"):
        assert f"allow {action} " in named


def test_the_command_with_a_real_synthesis(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine without HyperPod's chart."""
    monkeypatch.undo()
    aws = eks_account(EKS)
    monkeypatch.setattr(command, "open_session", lambda region, profile: aws.session)
    monkeypatch.setattr("stacks.eks_hyperpod_stack.chart_folder", partial(chart_folder, cache=tmp_path))
    monkeypatch.setattr(sys, "argv", ["preflight", "--cluster", "clusters/eks.yaml"])
    monkeypatch.chdir(REPOSITORY)
    assert command.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"OK       add-on vpc-cni: {VERSIONS[VPC_CNI]} is offered for Kubernetes 1.34" in lines
    (wrong,) = [line for line in lines if line.startswith(("FAIL", "UNKNOWN"))]
    assert wrong == (
        f"FAIL     synthesis: chart hyperpod is not in {tmp_path}; run make charts, which needs git and the "
        "internet"
    )
