"""Templates of a HyperPod cluster in an EKS cluster that exists: it only receives what is this cluster's."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from config.stack_division import LEAST_OTHER_RESOURCES
from tests.stacks.intrinsics import Evaluator
from tests.stacks.synthesized import Templates, load, read_templates, resources, synthesize
from tests.stacks.test_shared_vpc import NETWORK, REGION

EXISTING = "lab-eks"
GROUPS = ["sg-0aaaaaaaaaaaaaaaa", "sg-0bbbbbbbbbbbbbbbb"]
TEAM = "arn:aws:iam::123456789012:role/team"
OWN_IN_KUBERNETES = {
    ("Namespace", "hyperpod-training"),
    ("Namespace", "training-metrics"),
    ("StorageClass", "fsx-lustre"),
    ("PersistentVolume", "fsx-hyperpod-training"),
    ("PersistentVolume", "fsx-kube-system"),
}
"""Objects of no namespace, apart from roles of Kubernetes."""


@cache
def stacks() -> Templates:
    network = NETWORK | {"security_group_ids": GROUPS, "interface_endpoints": False}
    access = [{"principal_arn": TEAM, "level": "edit"}]
    kubernetes = {"existing": EXISTING, "access": access}
    return read_templates(
        synthesize(load("clusters/eks.yaml", network=network, kubernetes=kubernetes))
    )


def hyperpod() -> dict[str, Any]:
    return stacks()["EksHyperPodStack"]


@cache
def of_type(kind: str) -> list[dict[str, Any]]:
    evaluate = Evaluator(stacks(), REGION)
    return [evaluate(found["Properties"]) for found in resources(hyperpod(), kind).values()]


def output(name: str) -> str:
    return str(Evaluator(stacks(), REGION)(hyperpod()["Outputs"][name]["Value"]))


def objects() -> list[dict[str, Any]]:
    return [
        found
        for properties in of_type("Custom::AWSCDK-EKS-KubernetesResource")
        for found in json.loads(properties["Manifest"])
    ]


@pytest.mark.parametrize(
    "kind",
    ["AWS::EKS::Cluster", "AWS::EKS::Addon", "Custom::AWSCDK-EKS-HelmChart", "AWS::EC2::"],
)
def test_no_control_plane_addon_or_chart_is_created(kind: str) -> None:
    assert not [
        found["Type"]
        for template in stacks().values()
        for found in template["Resources"].values()
        if found["Type"].startswith(kind)
    ]


def test_nodes_join_the_existing_cluster() -> None:
    (cluster,) = of_type("AWS::SageMaker::Cluster")
    assert cluster["Orchestrator"]["Eks"]["ClusterArn"].endswith(f":cluster/{EXISTING}")
    assert cluster["VpcConfig"]["SecurityGroupIds"] == GROUPS
    command = f"aws eks update-kubeconfig --name {EXISTING} --region us-west-2"
    assert output("KubeconfigCommand") == command


def test_the_installer_and_the_files_users_get_access_entries() -> None:
    entries = {entry["PrincipalArn"]: entry for entry in of_type("AWS::EKS::AccessEntry")}
    assert all(entry["ClusterName"] == EXISTING for entry in entries.values())
    (installer,) = entries.keys() - {TEAM}
    assert installer.partition("role/")[2]
    policies = [policy["PolicyArn"] for policy in entries[installer]["AccessPolicies"]]
    assert policies == ["arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"]


def test_no_stack_has_fewer_other_resources_than_the_rules_count() -> None:
    """An existing EKS cluster has the smallest stack: it needs no control plane and fewer add-ons."""
    assert len(hyperpod()["Resources"]) - 1 >= LEAST_OTHER_RESOURCES


def test_the_installer_is_in_the_nodes_network() -> None:
    (place,) = [
        function["VpcConfig"]
        for function in of_type("AWS::Lambda::Function")
        if function.get("Description") == "onEvent handler for EKS kubectl resource provider"
    ]
    assert place["SecurityGroupIds"] == GROUPS
    subnets: Any = NETWORK["private_subnets"]
    assert place["SubnetIds"] == [subnet["subnet_id"] for subnet in subnets]


def test_objects_come_after_the_installers_access_and_go_before_it() -> None:
    template = hyperpod()["Resources"]
    (entry,) = [name for name in template if "InstallerAccess" in name]
    for name, found in template.items():
        if found["Type"].startswith("Custom::AWSCDK-EKS-"):
            assert entry in found["DependsOn"], name


def test_objects_of_the_whole_cluster_are_this_clusters_own() -> None:
    """No policy of the network, which would apply to the pods of others."""
    found = {
        (item["kind"], item["metadata"]["name"])
        for item in objects()
        if "namespace" not in item["metadata"] and not item["kind"].startswith("ClusterRole")
    }
    assert found == OWN_IN_KUBERNETES


def test_folders_are_created_on_hyperpods_nodes() -> None:
    """Other nodes of the cluster need not reach the file system."""
    (job,) = [item for item in objects() if item["kind"] == "Job"]
    labels = job["spec"]["template"]["spec"]["nodeSelector"]
    assert labels == {"sagemaker.amazonaws.com/compute-type": "hyperpod"}


def test_pods_of_others_keep_their_roles() -> None:
    """The driver of Lustre may serve other file systems, with a role of its own."""
    accounts = {item["ServiceAccount"] for item in of_type("AWS::EKS::PodIdentityAssociation")}
    assert "fsx-csi-controller-sa" not in accounts
    assert "health-monitoring-agent" in accounts


def test_nothing_deletes_interfaces_of_pods() -> None:
    assert not of_type("Custom::HyperPodPodInterfaces")


def test_an_output_has_the_command_that_installs_the_metrics_addon() -> None:
    command = output("ObservabilityAddonCommand")
    assert command.startswith(f"aws eks create-addon --cluster-name {EXISTING} ")
    configuration = json.loads(command.partition("--configuration-values '")[2].removesuffix("'"))
    assert configuration["ampWorkspace"]["arn"].startswith("arn:aws:aps:")
