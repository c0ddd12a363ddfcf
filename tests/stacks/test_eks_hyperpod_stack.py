"""The EKS stack: access to the control plane, node settings, and outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, CfnOutput, Stack

import app
from config.cluster_files import DEFAULT_CLUSTER_FILE
from stacks import assembly_checks
from stacks.eks_hyperpod_stack import node_files
from stacks.remaining_costs import remaining_costs
from tests.stacks.eks_cases import (
    CASES,
    CLUSTER,
    EKS,
    evaluated,
    groups,
    hyperpod,
    objects,
    settings,
    stacks,
)
from tests.stacks.intrinsics import Evaluator
from tests.stacks.shapes import create_cluster_shape, violations
from tests.stacks.synthesized import EKS_FILES, load, only, resources, synthesize

# CloudFormation's quota: resources in a template.
MAX_RESOURCES = 500


@pytest.mark.parametrize("case", CASES)
def test_the_whole_internet_never_reaches_the_control_plane(case: str) -> None:
    reached = only(hyperpod(case), EKS)["ResourcesVpcConfig"]
    kubernetes = settings(case).kubernetes
    assert reached["EndpointPrivateAccess"] is True
    assert reached["EndpointPublicAccess"] is (kubernetes.endpoint == "public_and_private")
    assert reached.get("PublicAccessCidrs", []) == kubernetes.public_access_cidrs
    assert "0.0.0.0/0" not in reached.get("PublicAccessCidrs", [])


def test_nodes_get_the_files_of_the_switches() -> None:
    cluster = load("clusters/eks-p5.yaml")
    assert node_files(cluster) == {}
    lustre = cluster.storage.lustre.model_copy(update={"efa": True})
    changed = {
        "storage": cluster.storage.model_copy(update={"lustre": lustre}),
        "kubernetes": cluster.kubernetes.model_copy(update={"pod_metadata_access": True}),
    }
    files = node_files(cluster.model_copy(update=changed))
    assert files.keys() == {"pods_reach_metadata", "lustre_efa", "set_up_lustre_efa.sh"}
    address, checksum = files["lustre_efa"].split()
    assert address.startswith("https://") and re.fullmatch("unknown|[0-9a-f]{64}", checksum)
    assert files["set_up_lustre_efa.sh"].startswith("#!/usr/bin/env bash")


@pytest.mark.parametrize("case", CASES)
def test_no_template_opens_a_port_to_the_internet(case: str) -> None:
    for template in stacks(case).values():
        for kind in ("AWS::EC2::SecurityGroup", "AWS::EC2::SecurityGroupIngress"):
            for found in resources(template, kind).values():
                properties = found["Properties"]
                for rule in [*properties.get("SecurityGroupIngress", []), properties]:
                    assert rule.get("CidrIp") != "0.0.0.0/0" and "CidrIpv6" not in rule


@pytest.mark.parametrize("case", CASES)
def test_control_plane_nodes_and_installer_share_the_group(case: str) -> None:
    """HyperPod's nodes are not in the group that EKS makes by itself."""
    cluster = evaluated(case, CLUSTER)
    control_plane = evaluated(case, EKS)
    (group,) = control_plane["ResourcesVpcConfig"]["SecurityGroupIds"]
    assert cluster["VpcConfig"]["SecurityGroupIds"] == [group]
    evaluate = Evaluator(stacks(case), settings(case).region)
    installers = [
        evaluate(found["Properties"]["VpcConfig"])
        for found in resources(hyperpod(case), "AWS::Lambda::Function").values()
        if "VpcConfig" in found["Properties"]
    ]
    assert len(installers) == 2
    for installer in installers:
        assert installer["SecurityGroupIds"] == [group]


@pytest.mark.parametrize("case", CASES)
def test_only_entries_of_the_file_let_people_in(case: str) -> None:
    access = only(hyperpod(case), EKS)["AccessConfig"]
    assert access == {"AuthenticationMode": "API", "BootstrapClusterCreatorAdminPermissions": False}
    entries = {
        found["Properties"]["PrincipalArn"]: found["Properties"]
        for name, found in resources(hyperpod(case), "AWS::EKS::AccessEntry").items()
        if "ClusterAdmin" not in name and not name.startswith("Studio")  # its spaces' own
    }
    assert list(entries) == [entry.principal_arn for entry in settings(case).kubernetes.access]
    for entry in settings(case).kubernetes.access:
        (policy,) = entries[entry.principal_arn]["AccessPolicies"]
        scope = (
            {"Type": "namespace", "Namespaces": entry.namespaces}
            if entry.namespaces
            else {"Type": "cluster"}
        )
        assert policy["AccessScope"] == scope
        words = entry.level.replace("_", " ").title().replace(" ", "")
        assert (
            policy["PolicyArn"] == f"arn:aws:eks::aws:cluster-access-policy/AmazonEKS{words}Policy"
        )


def test_people_may_handle_jobs_where_they_are_let_in() -> None:
    entries = [
        found["Properties"].get("KubernetesGroups")
        for name, found in resources(hyperpod("eks_every_option"), "AWS::EKS::AccessEntry").items()
        if "ClusterAdmin" not in name and not name.startswith("Studio")  # its spaces' own
    ]
    assert entries == [
        None,
        ["training-job-editors"],
        ["training-job-viewers:hyperpod-ns-proteins"],
    ]
    bound = {
        (made["metadata"].get("namespace"), made["roleRef"]["name"]): [
            subject["name"] for subject in made["subjects"]
        ]
        for made in objects("eks_every_option")
        if made["kind"] == "RoleBinding"
    }
    assert bound["hyperpod-ns-proteins", "training-job-viewers"] == [
        "training-job-viewers",
        "training-job-viewers:hyperpod-ns-proteins",
    ]
    assert bound["hyperpod-ns-structure", "training-job-editors"][0] == "training-job-editors"
    rules = {
        (group, resource): rule["verbs"]
        for made in objects("eks_every_option")
        if made["kind"] == "ClusterRole" and made["metadata"]["name"] == "training-job-viewers"
        for rule in made["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert rules["sagemaker.amazonaws.com", "hyperpodpytorchjobs"] == ["get", "list", "watch"]
    assert rules["kubeflow.org", "pytorchjobs"] == ["get", "list", "watch"]


@pytest.mark.parametrize("case", CASES)
def test_secrets_are_under_the_cluster_s_key(case: str) -> None:
    encrypted = only(hyperpod(case), EKS).get("EncryptionConfig")
    if settings(case).storage.kms == "aws":
        assert encrypted is None  # EKS has a key of its own
    else:
        assert [found["Resources"] for found in encrypted] == [["secrets"]]


@pytest.mark.parametrize("case", CASES)
def test_control_plane_logs_have_an_end_and_a_key(case: str) -> None:
    cluster = settings(case)
    stack = hyperpod(case)
    (name,) = (
        name
        for name, found in resources(stack, "AWS::Logs::LogGroup").items()
        if found["Properties"].get("LogGroupName") == f"/aws/eks/{cluster.name}/cluster"
    )
    group = stack["Resources"][name]["Properties"]
    assert group["RetentionInDays"] == cluster.kubernetes.control_plane_log_days
    assert ("KmsKeyId" in group) is (cluster.storage.kms != "aws")
    (control_plane,) = resources(stack, EKS).values()
    assert name in control_plane["DependsOn"]
    logged = only(stack, EKS)["Logging"]["ClusterLogging"]["EnabledTypes"]
    assert [found["Type"] for found in logged] == cluster.kubernetes.control_plane_logs


@pytest.mark.parametrize("case", CASES)
def test_no_log_outlives_the_cluster_or_is_without_its_key(case: str) -> None:
    for group in resources(hyperpod(case), "AWS::Logs::LogGroup").values():
        assert group["Properties"]["RetentionInDays"] <= 90
        assert ("KmsKeyId" in group["Properties"]) is (settings(case).storage.kms != "aws")
        assert group["DeletionPolicy"] == group["UpdateReplacePolicy"] == "Delete"


@pytest.mark.parametrize("case", CASES)
def test_sagemaker_takes_the_cluster(case: str) -> None:
    assert list(violations(create_cluster_shape(), evaluated(case, CLUSTER))) == []


def test_options_of_groups_arrive() -> None:
    found = groups("eks_every_option")
    assert found["spot"]["CapacityRequirements"] == {"Spot": {}}
    assert "OverrideVpcConfig" in found["spot"]
    assert found["scaled"]["InstanceCount"] == 0
    assert found["scaled"]["KubernetesConfig"] == {
        "Labels": {"lab": "structure"},
        "Taints": [{"Key": "lab", "Value": "structure", "Effect": "NoSchedule"}],
    }
    p5 = found["p5"]
    assert p5["OnStartDeepHealthChecks"] == ["InstanceStress", "InstanceConnectivity"]
    assert p5["TrainingPlanArn"].endswith("training-plan/esm2-p5")
    assert p5["NetworkInterface"] == {"InterfaceType": "efa-only"}
    assert (p5["MinInstanceCount"], p5["ThreadsPerCore"], p5["ImageReleaseVersion"]) == (
        4,
        1,
        "1.2.3",
    )
    assert found["trainium"]["AutoPatchConfig"] == {"PatchingStrategy": "WhenIdle"}
    # Only the root volume has a key, because there is no second volume.
    assert [
        list(config["EbsVolumeConfig"]) for config in found["small"]["InstanceStorageConfigs"]
    ] == [["RootVolume", "VolumeKmsKeyId"]]
    assert "KubernetesConfig" not in found["small"]


def test_karpenter_gets_only_its_own_groups() -> None:
    cluster = only(hyperpod("eks_every_option"), CLUSTER)
    assert cluster["AutoScaling"] == {"Mode": "Enable", "AutoScalerType": "Karpenter"}
    assert "ClusterRole" in cluster
    found = {made["kind"]: made for made in objects("eks_every_option")}
    assert found["HyperpodNodeClass"]["spec"] == {"instanceGroups": ["scaled"]}
    pool = found["NodePool"]["spec"]
    assert pool["limits"] == {"cpu": str(4 * 48)}, "four of 48 vCPUs each"
    assert pool["template"]["metadata"] == {"labels": {"lab": "structure"}}
    assert pool["template"]["spec"]["taints"] == [
        {"key": "lab", "value": "structure", "effect": "NoSchedule"}
    ]
    waits = only(hyperpod("eks_every_option"), "Custom::HyperPodNodes")
    assert waits["Autoscaling"] is True
    for file in EKS_FILES:
        assert "AutoScaling" not in only(hyperpod(file), CLUSTER)
        assert only(hyperpod(file), "Custom::HyperPodNodes")["Autoscaling"] is False


def test_nodes_that_are_waited_for_are_those_of_kubernetes_s_own_pods() -> None:
    waited = {case: only(hyperpod(case), "Custom::HyperPodNodes")["Groups"] for case in CASES}
    assert waited == {case: {"system": 1} for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_templates_stay_below_cloudformation_s_limits(case: str) -> None:
    for template in stacks(case).values():
        assert len(template["Resources"]) <= MAX_RESOURCES
        # Written without indentation.
        assert (
            len(json.dumps(template, separators=(",", ":")).encode())
            <= assembly_checks.MAX_TEMPLATE_BYTES
        )


def test_a_template_that_is_too_large_ends_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """aws-cdk-lib warns, and CloudFormation would refuse it after the assets are uploaded."""

    def add_a_stack(construct: App, _cluster: Any) -> None:
        stack = Stack(construct, "Large")
        for number in range(10):
            CfnOutput(stack, f"Output{number}", value="x" * 99_000)
        Stack(construct, "Small")

    monkeypatch.setattr(app, "DEFAULT_CLUSTER_FILES", {"slurm": DEFAULT_CLUSTER_FILE})
    monkeypatch.setattr(app, "add_stacks", add_a_stack)
    app.main()
    monkeypatch.setattr(assembly_checks, "MAX_TEMPLATE_BYTES", 990_000)
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert re.fullmatch(
        r"Large: the template has 99\d,\d{3} bytes, CloudFormation accepts 990,000; every .* set fewer .*",
        str(ended.value),
    )


def test_a_template_with_too_many_resources_is_reported(tmp_path: Path) -> None:
    for number in (MAX_RESOURCES, MAX_RESOURCES + 1):
        resources = {f"Resource{place}": {} for place in range(number)}
        template = json.dumps({"Resources": resources})
        (tmp_path / f"Of{number}.template.json").write_text(template)
    (message,) = assembly_checks.oversized(tmp_path)
    assert message.startswith("Of501: the template has 501 resources, CloudFormation accepts 500; ")


@pytest.mark.parametrize("file", EKS_FILES)
def test_output_lists_what_still_bills(file: str) -> None:
    outputs = hyperpod(file)["Outputs"]
    assert outputs["BillsUntilTeardown"]["Value"] == ", ".join(remaining_costs(load(file)))
    assert outputs["KubeconfigCommand"]["Value"].startswith("aws eks update-kubeconfig --name ")
    watched = load(file).observability
    shown = bool(watched and watched.grafana)
    assert ("Grafana workspace" in outputs["BillsUntilTeardown"]["Value"]) is shown


def test_a_changed_script_changes_the_current_version_and_no_property_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from stacks import eks_hyperpod_stack

    for script in eks_hyperpod_stack.SCRIPTS.iterdir():
        if script.is_file():
            (tmp_path / script.name).write_bytes(script.read_bytes())
    (tmp_path / "on_create.sh").write_text("exit 0\n")
    before = hyperpod("clusters/eks.yaml")
    monkeypatch.setattr(eks_hyperpod_stack, "SCRIPTS", tmp_path)
    folder = synthesize(load("clusters/eks.yaml"))
    changed = json.loads((folder / "EksHyperPodStack.template.json").read_text())
    assert only(changed, CLUSTER) == only(before, CLUSTER)
    first, second = (stack["Outputs"]["LifecycleSourceS3Uri"] for stack in (before, changed))
    assert first != second
