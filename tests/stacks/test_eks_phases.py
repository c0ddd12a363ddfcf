"""The EKS stack comes up in three phases, and goes down in the reverse order, as CloudFormation does it."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from config.eks_cluster import has_node_memory
from tests.stacks.eks_cases import settings
from tests.stacks.eks_variants import EKS_VARIANTS, eks_variant_templates
from tests.stacks.synthesized import EKS_FILES, assembly, templates

CLUSTER = "AWS::SageMaker::Cluster"
ADDON = "AWS::EKS::Addon"
CHART = "Custom::AWSCDK-EKS-HelmChart"
OBJECTS = "Custom::AWSCDK-EKS-KubernetesResource"
READY = "Custom::AWSCDK-EKS-KubernetesObjectValue"
INSTALLED = (ADDON, CHART, OBJECTS)
WITHOUT_NODES = {"vpc-cni", "kube-proxy", "eks-pod-identity-agent"}
CASES = (*EKS_FILES, *EKS_VARIANTS)

Resources = dict[str, dict[str, Any]]


def hyperpod(case: str) -> Resources:
    stacks = templates(case) if case in EKS_FILES else eks_variant_templates(case)
    found: Resources = stacks["EksHyperPodStack"]["Resources"]
    return found


def referred_to(value: Any) -> set[str]:
    """Logical ids in a template's part."""
    if isinstance(value, list):
        return set().union(*map(referred_to, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    if "Ref" in value:
        return {value["Ref"]}
    if "Fn::GetAtt" in value:
        return {value["Fn::GetAtt"][0]}
    return referred_to(list(value.values()))


@cache
def everything_before(case: str) -> dict[str, set[str]]:
    """All that a resource waits for, whether directly or not; deleted after it."""
    found = hyperpod(case)
    direct = {
        name: (set(resource.get("DependsOn", [])) | referred_to(resource.get("Properties")))
        & set(found)
        for name, resource in found.items()
    }
    closed: dict[str, set[str]] = {}

    def close(name: str) -> set[str]:
        if name not in closed:
            closed[name] = set(direct[name]).union(*(close(other) for other in direct[name]))
        return closed[name]

    for name in found:
        close(name)
    return closed


def of(case: str, *kinds: str) -> Resources:
    return {name: found for name, found in hyperpod(case).items() if found["Type"] in kinds}


def the(case: str, kind: str) -> str:
    (name,) = of(case, kind)
    return name


def addon(case: str, addon_name: str) -> str:
    (name,) = (
        name
        for name, found in of(case, ADDON).items()
        if found["Properties"]["AddonName"] == addon_name
    )
    return name


def in_phase(case: str, construct: str) -> set[str]:
    return {name for name in of(case, *INSTALLED) if name.startswith(construct)}


@pytest.mark.parametrize("case", CASES)
def test_every_installation_is_in_a_phase(case: str) -> None:
    first = in_phase(case, "WithoutNodes")
    last = in_phase(case, "WithNodes")
    assert first and last
    # What spaces need of the cluster comes at the very end.
    studio = in_phase(case, "Studio")
    assert first | last | studio == set(of(case, *INSTALLED))
    assert all(last <= everything_before(case)[name] for name in studio)


@pytest.mark.parametrize("case", CASES)
def test_first_comes_what_needs_no_nodes(case: str) -> None:
    before_cluster = everything_before(case)[the(case, CLUSTER)]
    first = in_phase(case, "WithoutNodes")
    assert first <= before_cluster
    assert {addon(case, name) for name in WITHOUT_NODES} | {the(case, CHART)} < first
    assert {name for name in first if hyperpod(case)[name]["Type"] == ADDON} == {
        addon(case, name) for name in WITHOUT_NODES
    }
    for name in first:
        assert the(case, CLUSTER) not in everything_before(case)[name]


@pytest.mark.parametrize("case", CASES)
def test_the_chart_does_not_wait_for_its_pods(case: str) -> None:
    """There are no nodes to run them, and the installer would give up."""
    properties = hyperpod(case)[the(case, CHART)]["Properties"]
    assert "Wait" not in properties and "Atomic" not in properties
    assert properties["Namespace"] == "kube-system"


@pytest.mark.parametrize("case", CASES)
def test_last_comes_what_needs_nodes(case: str) -> None:
    before = everything_before(case)
    running = the(case, "Custom::HyperPodNodes")
    ready = the(case, READY)
    assert the(case, CLUSTER) in before[running]
    assert running in before[ready]
    for name in in_phase(case, "WithNodes"):
        assert ready in before[name], name


def test_waits_until_kubernetes_has_a_node_with_a_network() -> None:
    """Longer than the function of aws-cdk-lib may run, and the question would never be answered."""
    asked = hyperpod("clusters/eks.yaml")[the("clusters/eks.yaml", READY)]["Properties"]
    assert (asked["ObjectNamespace"], asked["ObjectType"]) == ("kube-system", "daemonset")
    # The name of the add-on's, and what the API leaves out while it is 0.
    assert (asked["ObjectName"], asked["JsonPath"]) == ("aws-node", ".status.numberAvailable")
    asks = referred_to(asked["ServiceToken"])
    (timeout,) = {hyperpod("clusters/eks.yaml")[name]["Properties"]["Timeout"] for name in asks}
    assert int(asked["TimeoutSeconds"]) < timeout


@pytest.mark.parametrize("case", CASES)
def test_names_and_certificates_come_before_operators(case: str) -> None:
    before = everything_before(case)
    names = addon(case, "coredns")
    certificates = addon(case, "cert-manager")
    assert names in before[certificates]
    for name in in_phase(case, "WithNodes") - {names, certificates}:
        assert certificates in before[name], name


@pytest.mark.parametrize("case", ["clusters/eks-p5.yaml", "eks_every_option"])
def test_quotas_come_between_kueue_and_what_makes_pods(case: str) -> None:
    before = everything_before(case)
    kueue = addon(case, "amazon-sagemaker-hyperpod-taskgovernance")
    policy = the(case, "Custom::HyperPodClusterSchedulerConfig")
    quotas = set(of(case, "Custom::HyperPodComputeQuota"))
    assert quotas
    assert kueue in before[policy]
    for quota in quotas:
        assert policy in before[quota]
    earlier = {kueue, addon(case, "coredns"), addon(case, "cert-manager")}
    for name in in_phase(case, "WithNodes") - earlier:
        assert quotas <= before[name], name


@pytest.mark.parametrize("case", CASES)
def test_pods_find_their_identity_when_they_start(case: str) -> None:
    """An association that is made later is not seen by pods that run."""
    addons = {
        "fsx-csi-controller-sa": "aws-fsx-csi-driver",
        "hp-training-operator-controller-manager": "amazon-sagemaker-hyperpod-training-operator",
        "hyperpod-observability-operator-otel-collector": "amazon-sagemaker-hyperpod-observability",
        "cloudwatch-agent": "amazon-cloudwatch-observability",
    }
    objects = {
        "training": "WithNodesMlflowObjects",
        "training-metrics": "WithNodesTrainingMetricsObjects",
        "studio-partitions": "StudioQueued",
        "health-monitoring-agent": "WithoutNodesChart",
    }
    found = of(case, "AWS::EKS::PodIdentityAssociation")
    assert found
    for name, association in found.items():
        account = association["Properties"]["ServiceAccount"]
        makers = (
            {addon(case, addons[account])}
            if account in addons
            else in_phase(case, objects[account])
        )
        assert makers
        for maker in makers:
            assert name in everything_before(case)[maker]


@pytest.mark.parametrize("case", CASES)
def test_volumes_go_in_order(case: str) -> None:
    """Claims, then volumes, then the driver that unmounts them, when all goes down."""
    found = hyperpod(case)
    before = everything_before(case)
    objects = {
        name: {made["kind"] for made in json.loads(text)}
        for name in of(case, OBJECTS)
        if isinstance(text := found[name]["Properties"]["Manifest"], str)
        and not name.startswith("WithNodesNodeMemory")  # which needs no driver
    }
    (claims,) = (name for name, kinds in objects.items() if "PersistentVolumeClaim" in kinds)
    (folders,) = (name for name, kinds in objects.items() if "Job" in kinds)
    (volumes,) = (name for name in of(case, OBJECTS) if name.startswith("WithNodesLustreVolumes"))
    assert claims in before[folders]
    assert volumes in before[claims]
    assert addon(case, "aws-fsx-csi-driver") in before[volumes]


@pytest.mark.parametrize("case", CASES)
def test_the_metadata_policy_holds_before_the_first_pod(case: str) -> None:
    (policy,) = (
        name for name in of(case, OBJECTS) if name.startswith("WithoutNodesMetadataPolicy")
    )
    assert addon(case, "vpc-cni") in everything_before(case)[policy]
    assert policy in everything_before(case)[the(case, CLUSTER)]


@pytest.mark.parametrize("case", CASES)
def test_the_installer_is_there_until_all_is_removed(case: str) -> None:
    """Its permissions in Kubernetes and IAM are deleted after the last chart and object."""
    found = hyperpod(case)
    needed = {
        name
        for name, resource in found.items()
        if name.startswith("KubernetesClusterKubectlProviderHandler")
        and resource["Type"] in ("AWS::IAM::Role", "AWS::IAM::Policy", "AWS::Lambda::Function")
    } | {name for name in of(case, "AWS::EKS::AccessEntry") if "ClusterAdmin" in name}
    assert len(needed) == 4
    for name in of(case, CHART, OBJECTS):
        assert needed <= everything_before(case)[name], name


@pytest.mark.parametrize("case", CASES)
def test_pods_interfaces_are_deleted_between_nodes_and_network(case: str) -> None:
    """The group that they are in is the network stack's, which goes after this one."""
    cleaner = the(case, "Custom::HyperPodPodInterfaces")
    assert cleaner in everything_before(case)[the(case, CLUSTER)]
    properties = hyperpod(case)[cleaner]["Properties"]
    (group,) = hyperpod(case)[the(case, CLUSTER)]["Properties"]["VpcConfig"]["SecurityGroupIds"]
    assert properties["SecurityGroupId"] == group


@pytest.mark.parametrize("case", CASES)
def test_jobs_that_run_do_not_hold_up_a_deletion(case: str) -> None:
    """Kubernetes keeps a claim, and the namespace it is in, until the last pod that uses it ends."""
    held = {"Namespace", "PersistentVolume", "PersistentVolumeClaim"}
    retained = 0
    for name, resource in of(case, OBJECTS).items():
        if name.startswith("WithNodesTrainingMetrics"):
            continue  # a namespace of its own, with one pod that uses no claim
        text = json.dumps(resource["Properties"]["Manifest"])
        kinds = set(re.findall(r'\\+"kind\\+":\\+"(\w+)\\+"', text))
        assert kinds
        if kinds & held:
            retained += 1
            assert resource["DeletionPolicy"] == "Retain"
    assert retained == 2 + has_node_memory(settings(case))


@pytest.mark.parametrize("file", EKS_FILES)
def test_network_and_storage_outlive_the_cluster(file: str) -> None:
    """Rules, routes and endpoints, without which nothing can be removed, are in stacks that go later."""
    artifacts = json.loads((assembly(file) / "manifest.json").read_text())["artifacts"]
    assert "EksStorageStack" in artifacts["EksHyperPodStack"]["dependencies"]
    assert "EksNetworkStack" in artifacts["EksStorageStack"]["dependencies"]
    networking = {
        found["Type"] for found in hyperpod(file).values() if found["Type"].startswith("AWS::EC2::")
    }
    assert networking == set()
