"""The EKS stack: who reaches the control plane, what nodes are given, what is on, what is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from config.addons import ADDON_VERSIONS
from config.kubernetes_names import job_namespaces
from stacks.remaining_costs import remaining_costs
from tests.stacks.eks_variants import EKS_VARIANTS, eks_variant, eks_variant_templates
from tests.stacks.intrinsics import Evaluator
from tests.stacks.shapes import create_cluster_shape, violations
from tests.stacks.synthesized import EKS_FILES, Templates, load, only, resources, synthesize, templates

CASES = (*EKS_FILES, *EKS_VARIANTS)
CLUSTER, EKS, ADDON = "AWS::SageMaker::Cluster", "AWS::EKS::Cluster", "AWS::EKS::Addon"
OBJECTS = "Custom::AWSCDK-EKS-KubernetesResource"
# CloudFormation's quotas: resources in a template, and its size.
MAX_RESOURCES, MAX_TEMPLATE_BYTES = 500, 1_000_000


def settings(case: str) -> Any:
    return load(case) if case in EKS_FILES else eks_variant(case)


def stacks(case: str) -> Templates:
    return templates(case) if case in EKS_FILES else eks_variant_templates(case)


def hyperpod(case: str) -> dict[str, Any]:
    return stacks(case)["EksHyperPodStack"]


def evaluated(case: str, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = Evaluator(stacks(case), settings(case).region)(only(hyperpod(case), kind))
    return found


def groups(case: str) -> dict[str, dict[str, Any]]:
    return {group["InstanceGroupName"]: group for group in only(hyperpod(case), CLUSTER)["InstanceGroups"]}


def addons(case: str) -> dict[str, dict[str, Any]]:
    return {
        found["Properties"]["AddonName"]: found["Properties"]
        for found in resources(hyperpod(case), ADDON).values()
    }


def objects(case: str) -> list[dict[str, Any]]:
    """All Kubernetes objects of the stack, values evaluated."""
    evaluate = Evaluator(stacks(case), settings(case).region)
    return [
        made
        for found in resources(hyperpod(case), OBJECTS).values()
        for made in json.loads(evaluate(found["Properties"]["Manifest"]))
    ]


@pytest.mark.parametrize("case", CASES)
def test_the_whole_internet_never_reaches_the_control_plane(case: str) -> None:
    reached = only(hyperpod(case), EKS)["ResourcesVpcConfig"]
    kubernetes = settings(case).kubernetes
    assert reached["EndpointPrivateAccess"] is True
    assert reached["EndpointPublicAccess"] is (kubernetes.endpoint == "public_and_private")
    assert reached.get("PublicAccessCidrs", []) == kubernetes.public_access_cidrs
    assert "0.0.0.0/0" not in reached.get("PublicAccessCidrs", [])


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
    cluster, control_plane = evaluated(case, CLUSTER), evaluated(case, EKS)
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
        if "ClusterAdmin" not in name
    }
    assert list(entries) == [entry.principal_arn for entry in settings(case).kubernetes.access]
    for entry in settings(case).kubernetes.access:
        (policy,) = entries[entry.principal_arn]["AccessPolicies"]
        scope = (
            {"Type": "namespace", "Namespaces": entry.namespaces} if entry.namespaces else {"Type": "cluster"}
        )
        assert policy["AccessScope"] == scope
        words = entry.level.replace("_", " ").title().replace(" ", "")
        assert policy["PolicyArn"] == f"arn:aws:eks::aws:cluster-access-policy/AmazonEKS{words}Policy"


def test_people_may_handle_jobs_where_they_are_let_in() -> None:
    entries = [
        found["Properties"].get("KubernetesGroups")
        for name, found in resources(hyperpod("eks_every_option"), "AWS::EKS::AccessEntry").items()
        if "ClusterAdmin" not in name
    ]
    assert entries == [None, ["training-job-editors"], ["training-job-viewers:hyperpod-ns-proteins"]]
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
    assert (p5["MinInstanceCount"], p5["ThreadsPerCore"], p5["ImageReleaseVersion"]) == (4, 1, "1.2.3")
    assert found["trainium"]["AutoPatchConfig"] == {"PatchingStrategy": "WhenIdle"}
    # The root volume's key alone: no second volume is asked for.
    assert [list(config["EbsVolumeConfig"]) for config in found["small"]["InstanceStorageConfigs"]] == [
        ["RootVolume", "VolumeKmsKeyId"]
    ]
    assert "KubernetesConfig" not in found["small"]


def test_karpenter_is_told_of_its_groups_alone() -> None:
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
def test_addons_are_pinned(case: str) -> None:
    versions = ADDON_VERSIONS[settings(case).kubernetes.version]
    for name, properties in addons(case).items():
        assert properties["AddonVersion"] == versions[name]
        assert properties["ResolveConflicts"] == "OVERWRITE"
        json.loads(
            Evaluator(stacks(case), settings(case).region)(properties.get("ConfigurationValues", "{}"))
        )


@pytest.mark.parametrize("case", CASES)
def test_there_is_one_training_operator(case: str) -> None:
    hyperpods = "amazon-sagemaker-hyperpod-training-operator" in addons(case)
    evaluate = Evaluator(stacks(case), settings(case).region)
    (chart,) = resources(hyperpod(case), "Custom::AWSCDK-EKS-HelmChart").values()
    kubeflows = json.loads(evaluate(chart["Properties"]["Values"]))["trainingOperators"]["enabled"]
    assert (hyperpods, kubeflows) == (
        settings(case).training_operator == "hyperpod",
        settings(case).training_operator == "kubeflow",
    )


@pytest.mark.parametrize("case", CASES)
def test_metrics_are_what_the_file_says(case: str) -> None:
    cluster = settings(case)
    name = "amazon-sagemaker-hyperpod-observability"
    assert (name in addons(case)) is cluster.prometheus
    assert ("amazon-cloudwatch-observability" in addons(case)) is cluster.container_insights
    assert bool(resources(stacks(case)["EksStorageStack"], "AWS::Grafana::Workspace")) is cluster.grafana
    if cluster.prometheus:
        evaluate = Evaluator(stacks(case), cluster.region)
        given = json.loads(evaluate(addons(case)[name]["ConfigurationValues"]))
        region = cluster.region
        assert given["ampWorkspace"]["prometheusEndpoint"] == (
            f"https://aps-workspaces.{region}.amazonaws.com/workspaces/ws-0123"
        )
        assert ("amgWorkspace" in given) is cluster.grafana


@pytest.mark.parametrize("case", CASES)
def test_every_namespace_of_jobs_has_the_file_system(case: str) -> None:
    made = objects(case)
    claims = {
        found["metadata"]["namespace"]: found for found in made if found["kind"] == "PersistentVolumeClaim"
    }
    volumes = {
        found["metadata"]["name"]: found["spec"] for found in made if found["kind"] == "PersistentVolume"
    }
    (kind,) = (found for found in made if found["kind"] == "StorageClass")
    assert list(claims) == ["kube-system", *job_namespaces(settings(case))]
    handles = [volume["csi"]["volumeHandle"] for volume in volumes.values()]
    assert len(handles) == len(set(handles)) == len(claims)
    for namespace, claim in claims.items():
        volume = volumes[claim["spec"]["volumeName"]]
        assert volume["claimRef"]["namespace"] == namespace
        assert volume["claimRef"]["name"] == claim["metadata"]["name"] == "fsx"
        assert volume["storageClassName"] == claim["spec"]["storageClassName"] == kind["metadata"]["name"]
        assert volume["capacity"] == claim["spec"]["resources"]["requests"]
        assert volume["persistentVolumeReclaimPolicy"] == "Retain"
        assert volume["csi"]["volumeAttributes"] == {
            "dnsname": f"fs-0123456789abcdef0.fsx.{settings(case).region}.amazonaws.com",
            "mountname": "abcdefgh",
        }


@pytest.mark.parametrize("case", CASES)
def test_teams_have_their_quotas(case: str) -> None:
    governance = settings(case).task_governance
    found = [
        quota["Properties"] for quota in resources(hyperpod(case), "AWS::SageMaker::ComputeQuota").values()
    ]
    assert ("amazon-sagemaker-hyperpod-taskgovernance" in addons(case)) is (governance is not None)
    teams = governance.teams if governance else []
    assert [quota["ComputeQuotaTarget"]["TeamName"] for quota in found] == [team.name for team in teams]
    for quota in found:
        assert len(quota["Name"]) <= 63
        assert {tag["Key"] for tag in quota["Tags"]} >= {"project", "hyperpod-cluster"}


def test_quotas_are_in_instances_or_in_accelerators() -> None:
    proteins, structure = (
        found["Properties"]["ComputeQuotaConfig"]
        for found in resources(hyperpod("clusters/eks-p5.yaml"), "AWS::SageMaker::ComputeQuota").values()
    )
    assert proteins["ComputeQuotaResources"] == [{"InstanceType": "ml.p5.48xlarge", "Count": 6}]
    assert proteins["ResourceSharingConfig"] == {"Strategy": "LendAndBorrow", "BorrowLimit": 100}
    assert structure["ComputeQuotaResources"] == [{"InstanceType": "ml.p5.48xlarge", "Accelerators": 16}]
    assert structure["ResourceSharingConfig"]["BorrowLimit"] == 50, "the service's own"
    assert {found["PreemptTeamTasks"] for found in (proteins, structure)} == {"LowerPriority"}


@pytest.mark.parametrize("case", CASES)
def test_templates_stay_below_cloudformation_s_limits(case: str) -> None:
    for template in stacks(case).values():
        assert len(template["Resources"]) <= MAX_RESOURCES
        # Written without indentation.
        assert len(json.dumps(template, separators=(",", ":")).encode()) <= MAX_TEMPLATE_BYTES


@pytest.mark.parametrize("file", EKS_FILES)
def test_what_goes_on_billing_is_told(file: str) -> None:
    outputs = hyperpod(file)["Outputs"]
    assert outputs["BillsUntilTeardown"]["Value"] == ", ".join(remaining_costs(load(file)))
    assert outputs["KubeconfigCommand"]["Value"].startswith("aws eks update-kubeconfig --name ")
    assert ("Grafana workspace" in outputs["BillsUntilTeardown"]["Value"]) is load(file).grafana


def test_a_changed_script_changes_what_nodes_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from constructs import eks_node_files

    for script in eks_node_files.SCRIPTS.iterdir():
        if script.is_file():
            (tmp_path / script.name).write_bytes(script.read_bytes())
    (tmp_path / "on_create.sh").write_text("exit 0\n")
    before = evaluated("clusters/eks.yaml", CLUSTER)["InstanceGroups"][0]["LifeCycleConfig"]["SourceS3Uri"]
    monkeypatch.setattr(eks_node_files, "SCRIPTS", tmp_path)
    folder = synthesize(load("clusters/eks.yaml"))
    changed = json.loads((folder / "EksHyperPodStack.template.json").read_text())
    uri = Evaluator({"EksHyperPodStack": changed}, "us-west-2")(
        only(changed, CLUSTER)["InstanceGroups"][0]["LifeCycleConfig"]["SourceS3Uri"]
    )
    assert uri.startswith("s3://sagemaker-esm2-eks-") and uri != before
