"""Services of an EKS cluster: add-ons, operators, metrics, volumes, quotas."""

from __future__ import annotations

import json
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from config.facts.addons import ADDON_VERSIONS, KUBE_PROXY, VPC_CNI, addon_version
from config.pod_demand import installed_addons
from config.resource_names import job_namespaces
from manifests.chart_values import chart_values
from tests.manifests.helm_runs import IMAGE_REPOSITORY, STAND_INS, render
from tests.stacks.eks_cases import CASES, addons, governed, hyperpod, objects, settings, stacks
from tests.stacks.intrinsics import Evaluator
from tests.stacks.shapes import request_shape, violations
from tests.stacks.synthesized import resources


@pytest.mark.parametrize("case", CASES)
def test_addons_are_pinned(case: str) -> None:
    versions = ADDON_VERSIONS[settings(case).kubernetes.version]
    for name, properties in addons(case).items():
        assert properties["AddonVersion"] == versions[name]
        assert properties["ResolveConflicts"] == "OVERWRITE"
        json.loads(
            Evaluator(stacks(case), settings(case).region)(
                properties.get("ConfigurationValues", "{}")
            )
        )


@pytest.mark.parametrize("case", CASES)
def test_pods_are_counted_for_each_addon_of_the_stack(case: str) -> None:
    assert installed_addons(settings(case)) == set(addons(case))


def test_eks_chooses_kube_proxy_of_an_unknown_version() -> None:
    assert addon_version("1.36", KUBE_PROXY) is None
    assert addon_version("1.36", VPC_CNI) == addon_version("1.34", VPC_CNI)


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
def test_kubeflows_operator_runs_on_nodes_in_deep_health_checks(case: str) -> None:
    """Its chart has no value for tolerations: a patch comes after the chart."""
    kind = "Custom::AWSCDK-EKS-KubernetesPatch"
    cluster = settings(case)
    found = [
        patch
        for patch in resources(hyperpod(case), kind).values()
        if patch["Properties"]["ResourceName"].startswith("deployment/")
    ]
    assert len(found) == (cluster.training_operator == "kubeflow")
    for patch in found:
        properties = patch["Properties"]
        charts = resources(hyperpod(case), "Custom::AWSCDK-EKS-HelmChart")
        ((chart, release),) = (
            (name, made["Properties"]["Release"]) for name, made in charts.items()
        )
        assert chart in patch["DependsOn"]
        rendered = render(
            STAND_INS / "hyperpod", chart_values(cluster, IMAGE_REPOSITORY), release=release
        )
        operator = next(
            made for made in rendered if made["metadata"].get("namespace") == "kubeflow"
        )
        assert properties["ResourceName"] == f"deployment/{operator['metadata']['name']}"
        assert properties["ResourceNamespace"] == "kubeflow"
        (toleration,) = json.loads(properties["ApplyPatchJson"])["spec"]["template"]["spec"][
            "tolerations"
        ]
        assert toleration == {
            "key": "sagemaker.amazonaws.com/node-health-status",
            "operator": "Equal",
            "value": "Unschedulable",
            "effect": "NoSchedule",
        }


@pytest.mark.parametrize("case", CASES)
def test_metrics_are_what_the_file_says(case: str) -> None:
    cluster = settings(case)
    name = "amazon-sagemaker-hyperpod-observability"
    assert (name in addons(case)) is cluster.prometheus
    assert ("amazon-cloudwatch-observability" in addons(case)) is cluster.container_insights
    if cluster.prometheus:
        evaluate = Evaluator(stacks(case), cluster.region)
        given = json.loads(evaluate(addons(case)[name]["ConfigurationValues"]))
        region = cluster.region
        assert given["ampWorkspace"]["prometheusEndpoint"] == (
            f"https://aps-workspaces.{region}.amazonaws.com/workspaces/ws-0123"
        )


@pytest.mark.parametrize("case", CASES)
def test_every_namespace_of_jobs_has_the_file_system(case: str) -> None:
    made = objects(case)
    claims = claims_named(case, "fsx")
    volumes = {
        found["metadata"]["name"]: found["spec"]
        for found in made
        if found["kind"] == "PersistentVolume" and "csi" in found["spec"]
    }
    (kind,) = (found for found in made if found["kind"] == "StorageClass")
    assert list(claims) == ["kube-system", *job_namespaces(settings(case))]
    handles = [volume["csi"]["volumeHandle"] for volume in volumes.values()]
    assert len(handles) == len(set(handles)) == len(claims)
    for namespace, claim in claims.items():
        volume = volumes[claim["spec"]["volumeName"]]
        assert volume["claimRef"]["namespace"] == namespace
        assert volume["claimRef"]["name"] == claim["metadata"]["name"] == "fsx"
        assert (
            volume["storageClassName"]
            == claim["spec"]["storageClassName"]
            == kind["metadata"]["name"]
        )
        assert volume["capacity"] == claim["spec"]["resources"]["requests"]
        assert volume["persistentVolumeReclaimPolicy"] == "Retain"
        assert volume["csi"]["volumeAttributes"] == {
            "dnsname": f"fs-0123456789abcdef0.fsx.{settings(case).region}.amazonaws.com",
            "mountname": "abcdefgh",
        }


def claims_named(case: str, name: str) -> dict[str, dict[str, Any]]:
    """Claims of this name by their namespaces."""
    return {
        found["metadata"]["namespace"]: found
        for found in objects(case)
        if found["kind"] == "PersistentVolumeClaim" and found["metadata"]["name"] == name
    }


@pytest.mark.parametrize("case", CASES)
def test_namespaces_have_memory_of_nodes_if_the_file_says_so(case: str) -> None:
    cluster = settings(case)
    on_nodes = cluster.memory_states is not None and cluster.memory_states.storage == "nodes"
    wanted = job_namespaces(cluster) if on_nodes else []
    assert list(claims_named(case, "node-memory")) == wanted
    keepers = [found for found in objects(case) if found["kind"] == "DaemonSet"]
    assert len(keepers) == on_nodes
    for keeper in keepers:
        [create] = keeper["spec"]["template"]["spec"]["initContainers"]
        assert all(f"/node/seqlm-{name} " in create["args"][0] for name in wanted)
    (made,) = resources(hyperpod(case), "AWS::SageMaker::Cluster").values()
    tier = made["Properties"].get("TieredStorageConfig")
    percent = cluster.managed_memory_percent
    expected = {"Mode": "Enable", "InstanceMemoryAllocationPercentage": percent}
    assert tier == (expected if percent else None)


@pytest.mark.parametrize("case", CASES)
def test_teams_have_their_quotas(case: str) -> None:
    cluster = settings(case)
    governance = cluster.task_governance
    quotas = governed(case, "ComputeQuota")
    assert ("amazon-sagemaker-hyperpod-taskgovernance" in addons(case)) is (governance is not None)
    teams = governance.teams if governance else []
    assert [quota["ComputeQuotaTarget"]["TeamName"] for quota in quotas] == [
        team.name for team in teams
    ]
    for quota in quotas:
        assert quota["Name"].startswith(cluster.name), "no other cluster's of the account"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["ClusterSchedulerConfig", "ComputeQuota"])
def test_sagemaker_takes_policy_and_quotas(case: str, kind: str) -> None:
    requests = governed(case, kind)
    assert bool(requests) is (settings(case).task_governance is not None)
    for request in requests:
        assert list(violations(request_shape(f"Create{kind}"), request)) == []
        assert {tag["Key"] for tag in request["Tags"]} >= {"project", "hyperpod-cluster"}


def test_priorities_are_what_the_file_says() -> None:
    (policy,) = governed("clusters/eks-p5.yaml", "ClusterSchedulerConfig")
    assert policy["SchedulerConfig"] == {
        "PriorityClasses": [
            {"Name": "urgent", "Weight": 100},
            {"Name": "training", "Weight": 50},
            {"Name": "sweep", "Weight": 10},
        ],
        "FairShare": "Enabled",
        "IdleResourceSharing": "Enabled",
    }


def test_quotas_are_in_instances_or_in_accelerators() -> None:
    proteins, structure = (
        quota["ComputeQuotaConfig"] for quota in governed("clusters/eks-p5.yaml", "ComputeQuota")
    )
    assert proteins["ComputeQuotaResources"] == [{"InstanceType": "ml.p5.48xlarge", "Count": 6}]
    assert proteins["ResourceSharingConfig"] == {"Strategy": "LendAndBorrow", "BorrowLimit": 100}
    assert structure["ComputeQuotaResources"] == [
        {"InstanceType": "ml.p5.48xlarge", "Accelerators": 16}
    ]
    assert structure["ResourceSharingConfig"]["BorrowLimit"] == 50, "the service's own"
    assert {found["PreemptTeamTasks"] for found in (proteins, structure)} == {"LowerPriority"}


@pytest.mark.parametrize("case", CASES)
def test_pods_are_kept_from_the_nodes_credentials_and_not_from_their_own(case: str) -> None:
    (policy,) = (made for made in objects(case) if made["kind"] == "ClusterNetworkPolicy")
    spec = policy["spec"]
    assert spec["tier"] == "Admin", "no namespace's own policy lifts it"
    assert spec["subject"] == {"namespaces": {"matchLabels": {}}}, "all of them"
    (rule,) = spec["egress"]
    assert rule["action"] == "Deny"
    networks = [ip_network(network) for target in rule["to"] for network in target["networks"]]
    assert any(ip_address("169.254.169.254") in network for network in networks)
    assert not any(ip_address("169.254.170.23") in network for network in networks), "pod identity"
    cni = json.loads(addons(case)["vpc-cni"]["ConfigurationValues"])
    assert cni["enableNetworkPolicy"] == "true"


@pytest.mark.parametrize("case", CASES)
def test_pods_of_jobs_are_not_in_the_network_of_nodes_nor_see_their_files(case: str) -> None:
    """There they would have the nodes' credentials, whatever the network's policies say."""
    labels = {
        made["metadata"]["name"]: made["metadata"]["labels"]
        for made in objects(case)
        if made["kind"] == "Namespace"
    } | {
        patch["Properties"]["ResourceName"].removeprefix("namespace/"): json.loads(
            patch["Properties"]["ApplyPatchJson"]
        )["metadata"]["labels"]
        for patch in resources(hyperpod(case), "Custom::AWSCDK-EKS-KubernetesPatch").values()
        if patch["Properties"]["ResourceName"].startswith("namespace/")
    }
    levels = {name: found["pod-security.kubernetes.io/enforce"] for name, found in labels.items()}
    of_jobs = dict.fromkeys(job_namespaces(settings(case)), "baseline")
    collector = {"training-metrics": "restricted"} if settings(case).prometheus else {}
    assert levels == of_jobs | collector
