"""The stacks of an EKS cluster: deployed, changed, changed in vain, torn down and deployed again.

Each stage deploys over the one before and notes what it then sees; the tests compare the notes.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError

from config.eks_cluster import EksCluster
from config.facts import addons
from config.facts.addons import ADDON_VERSIONS
from config.reading.loader import load_cluster
from config.resource_names import ResourceNames
from manifests.public_images import images_of, repository_address
from tests.local_aws.deployment import (
    ACCOUNT,
    REPOSITORY,
    LocalAws,
    Seen,
    assert_accepted,
    copy_checkout,
    put_chart,
    see,
)
from tools.stacks.teardown import CLUSTER_TAG

pytestmark = pytest.mark.long

EKS = load_cluster(REPOSITORY / "clusters" / "eks.yaml")
assert isinstance(EKS, EksCluster)
FILE = "clusters/temporary.yaml"
DEPLOY = ("deploy", "--require-approval", "never", "--context", f"cluster={FILE}")
TOOL = (sys.executable, "-m", "tools.stacks.deploy", "deploy", "--cluster", FILE)
NETWORK, STORAGE, HYPERPOD = (
    f"{EKS.name}-eks-{part}" for part in ("network", "storage", "hyperpod")
)
ADMIN = f"arn:aws:iam::{ACCOUNT}:role/Admin"
LEAVER = f"arn:aws:iam::{ACCOUNT}:role/Leaver"
TAINT = {"key": "team", "value": "proteins", "effect": "NoSchedule"}
RELEASE = "kube-system/hyperpod-dependencies"
CLAIMS = {f"PersistentVolumeClaim {name}/fsx" for name in ("hyperpod-training", "kube-system")}
BINDINGS = {f"RoleBinding hyperpod-training/training-job-{name}" for name in ("editors", "viewers")}
METADATA_POLICY = "ClusterNetworkPolicy deny-instance-metadata"


@dataclass(frozen=True)
class Contents:
    """Contents of the account after a stage."""

    seen: Seen
    status: str | None
    """Status of the cluster's stack; None without one."""
    kubernetes_version: str | None
    addons: dict[str, str]
    """Versions by name."""
    pod_roles: dict[str, str]
    """Roles by namespace and service account."""
    principals: set[str]
    objects: dict[str, Any]
    releases: dict[str, Any]
    pod_interfaces: set[str]
    roles: set[str]
    log_groups: set[str]

    @property
    def nodes(self) -> dict[str, list[str]]:
        """Ids by group."""
        found: dict[str, list[str]] = {}
        for node in self.seen.nodes.get(EKS.name, []):
            found.setdefault(node["InstanceGroupName"], []).append(node["InstanceId"])
        return found


def contents(aws: LocalAws, output: str) -> Contents:
    region = EKS.region
    seen = see(aws, region, output)
    eks = aws.client("eks", region)
    name = {"clusterName": EKS.name}
    there = EKS.name in eks.list_clusters()["clusters"]
    told: dict[str, Any] = {"objects": {}, "releases": {}}
    if there:
        url = f"{aws.url}/moto-api/kubernetes/{ACCOUNT}/{region}/{EKS.name}"
        with urllib.request.urlopen(url) as answer:
            told = json.load(answer)
    installed = eks.list_addons(**name)["addons"] if there else []
    associations = eks.list_pod_identity_associations(**name)["associations"] if there else []
    stacks = aws.client("cloudformation", region).describe_stacks()["Stacks"]
    interfaces = aws.client("ec2", region).describe_network_interfaces(
        Filters=[{"Name": CLUSTER_TAG, "Values": [EKS.name]}]
    )["NetworkInterfaces"]
    roles = aws.client("iam", region).list_roles(MaxItems=1000)["Roles"]
    logs = aws.client("logs", region).describe_log_groups()["logGroups"]
    return Contents(
        seen=seen,
        status={item["StackName"]: item["StackStatus"] for item in stacks}.get(HYPERPOD),
        kubernetes_version=eks.describe_cluster(name=EKS.name)["cluster"]["version"]
        if there
        else None,
        addons={
            addon: eks.describe_addon(addonName=addon, **name)["addon"]["addonVersion"]
            for addon in installed
        },
        pod_roles={
            f"{item['namespace']}/{item['serviceAccount']}": eks.describe_pod_identity_association(
                associationId=item["associationId"], **name
            )["association"]["roleArn"]
            for item in associations
        },
        principals=set(eks.list_access_entries(**name)["accessEntries"]) if there else set(),
        objects=told["objects"],
        releases=told["releases"],
        pod_interfaces={item["NetworkInterfaceId"] for item in interfaces},
        roles={role["RoleName"] for role in roles if role["RoleName"].startswith(HYPERPOD[:24])},
        log_groups={group["logGroupName"] for group in logs if EKS.name in group["logGroupName"]},
    )


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The small cluster, whose data may go, with an administrator and someone who will leave."""
    cluster: dict[str, Any] = yaml.safe_load((REPOSITORY / "clusters" / "eks.yaml").read_text())
    cluster["storage"]["lustre"]["removal"] = "destroy"
    cluster["storage"]["data_bucket"] = {"removal": "destroy"}
    access = [
        {"principal_arn": ADMIN, "level": "cluster_admin"},
        {"principal_arn": LEAVER, "level": "view", "namespaces": ["hyperpod-training"]},
    ]
    cluster["kubernetes"] = {**cluster["kubernetes"], "access": access}
    return cluster


@pytest.fixture(scope="module")
def changed_document(document: dict[str, Any]) -> dict[str, Any]:
    """One user less, one worker and one add-on more, other values of the chart, no rule against metadata."""
    system, workers = document["instance_groups"]
    kubernetes = document["kubernetes"]
    return {
        **document,
        "container_insights": True,
        "kubernetes": {
            **kubernetes,
            "access": kubernetes["access"][:1],
            "pod_metadata_access": True,
        },
        "instance_groups": [system, {**workers, "num_instances": 3, "taints": [TAINT]}],
    }


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a stand-in where `make charts` puts charts."""
    folder = copy_checkout(tmp_path_factory.mktemp("deploy-eks") / "checkout")
    put_chart(folder / ".charts")
    return folder


@pytest.fixture(scope="module")
def deployed(aws: LocalAws, checkout: Path, document: dict[str, Any]) -> Contents:
    nobody = {"Effect": "Deny", "Principal": "*", "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [nobody]})
    for arn in (ADMIN, LEAVER):
        name = arn.rpartition("/")[2]
        aws.client("iam", EKS.region).create_role(RoleName=name, AssumeRolePolicyDocument=trust)
    return _deploy_by_tool(aws, checkout, document)


@pytest.fixture(scope="module")
def changed(
    aws: LocalAws, checkout: Path, deployed: Contents, changed_document: dict[str, Any]
) -> Contents:
    (checkout / FILE).write_text(yaml.safe_dump(changed_document))
    return contents(aws, aws.cdk(*DEPLOY, "EksHyperPodStack", cwd=checkout))


@pytest.fixture(scope="module")
def rolled_back(
    aws: LocalAws, checkout: Path, changed: Contents, document: dict[str, Any]
) -> Contents:
    """Deploy the earlier file again, whose second user left the company meanwhile."""
    aws.client("iam", EKS.region).delete_role(RoleName=LEAVER.rpartition("/")[2])
    (checkout / FILE).write_text(yaml.safe_dump(document))
    output = aws.cdk(*DEPLOY, "EksHyperPodStack", cwd=checkout, succeeds=False)
    return contents(aws, output)


@pytest.fixture(scope="module")
def torn_down(aws: LocalAws, checkout: Path, rolled_back: Contents) -> Contents:
    command = (sys.executable, "-m", "tools.stacks.teardown", "--cluster", FILE, "--yes", EKS.name)
    return contents(aws, aws.run(*command, cwd=checkout))


@pytest.fixture(scope="module")
def again(
    aws: LocalAws, checkout: Path, torn_down: Contents, changed_document: dict[str, Any]
) -> Contents:
    """The changed file's cluster, created at once, in a closed network and with copies of its images."""
    closed = {
        **changed_document,
        "network": {
            **changed_document["network"],
            "internet": "none",
            "interface_endpoints": True,
            "endpoint_zones": {"ssmmessages": "usw2-az1"},  # the local AWS has it in no other
        },
        "kubernetes": {**changed_document["kubernetes"], "images": "image_repository"},
    }
    return _deploy_by_tool(aws, checkout, closed)


def _deploy_by_tool(aws: LocalAws, checkout: Path, cluster: dict[str, Any]) -> Contents:
    (checkout / FILE).write_text(yaml.safe_dump(cluster))
    options = ("EksHyperPodStack", "--require-approval", "never", "--no-notices")
    return contents(aws, aws.run(*TOOL, *options, cwd=checkout))


def test_all_of_the_cluster_comes_up(deployed: Contents) -> None:
    assert {NETWORK, STORAGE, HYPERPOD} <= deployed.seen.stacks.keys()
    assert deployed.status == "CREATE_COMPLETE"
    assert deployed.kubernetes_version == EKS.kubernetes.version
    versions = ADDON_VERSIONS[EKS.kubernetes.version]
    options = {addons.CONTAINER_INSIGHTS, addons.TASK_GOVERNANCE}
    assert deployed.addons == {name: versions[name] for name in versions.keys() - options}
    assert {name: len(nodes) for name, nodes in deployed.nodes.items()} == {
        group.name: group.num_instances for group in EKS.instance_groups
    }
    shown = deployed.seen.stacks[HYPERPOD]
    assert shown["LustreFileSystemId"] in deployed.seen.file_systems
    assert deployed.seen.clusters[EKS.name]["ClusterStatus"] == "InService"


def test_those_of_the_file_and_the_installer_may_use_kubernetes(deployed: Contents) -> None:
    (installer,) = deployed.principals - {ADMIN, LEAVER}
    assert "Kubectl" in installer


def test_pods_of_each_service_have_a_role_of_their_own(deployed: Contents) -> None:
    assert deployed.pod_roles.keys() == {
        "aws-hyperpod/health-monitoring-agent",
        "aws-hyperpod/hp-training-operator-controller-manager",
        "hyperpod-observability/hyperpod-observability-operator-otel-collector",
        "kube-system/fsx-csi-controller-sa",
        "training-metrics/training-metrics",
    }
    assert len(set(deployed.pod_roles.values())) == len(deployed.pod_roles)


def test_kubernetes_has_the_chart_the_claims_and_the_roles_of_jobs(deployed: Contents) -> None:
    assert deployed.releases.keys() == {RELEASE}
    assert deployed.releases[RELEASE]["revision"] == 1
    assert {METADATA_POLICY, *CLAIMS, *BINDINGS} <= deployed.objects.keys()
    shown = deployed.seen.stacks[HYPERPOD]
    volume = deployed.objects["PersistentVolume fsx-hyperpod-training"]["spec"]["csi"]
    assert volume["volumeHandle"] == f"{shown['LustreFileSystemId']}/hyperpod-training"
    assert volume["volumeAttributes"]["mountname"] == shown["LustreMountName"]


def test_what_the_local_aws_lacks_is_refused(aws: LocalAws, deployed: Contents) -> None:
    """Not skipped, as moto would, with a deployment that looks whole; by name, before anything is made."""
    cloudformation = aws.client("cloudformation", EKS.region)
    template = cloudformation.get_template(StackName=HYPERPOD)["TemplateBody"]
    group = {"Type": "AWS::EKS::Nodegroup", "Properties": {"ClusterName": EKS.name}}
    patch = {"Type": "Custom::AWSCDK-EKS-KubernetesPatch"}
    resources = {**template["Resources"], "Group": group, "Patch": patch}
    with pytest.raises(ClientError, match=r"Unrecognized resource types: \[.*\]") as refused:
        cloudformation.create_change_set(
            StackName=HYPERPOD,
            ChangeSetName="more",
            ChangeSetType="UPDATE",
            Capabilities=["CAPABILITY_IAM"],
            TemplateBody=json.dumps({**template, "Resources": resources}),
        )
    (listed,) = re.findall(r"types: \[([^]]*)\]", str(refused.value))
    assert listed.split(", ") == ["AWS::EKS::Nodegroup", "Custom::AWSCDK-EKS-KubernetesPatch"]


def test_a_change_keeps_the_nodes_and_adds_one(deployed: Contents, changed: Contents) -> None:
    assert changed.status == "UPDATE_COMPLETE"
    assert changed.nodes["system"] == deployed.nodes["system"]
    before, after = deployed.nodes["workers"], changed.nodes["workers"]
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1


def test_a_change_adds_an_addon_and_upgrades_the_chart(
    deployed: Contents, changed: Contents
) -> None:
    versions = ADDON_VERSIONS[EKS.kubernetes.version]
    added = {addons.CONTAINER_INSIGHTS: versions[addons.CONTAINER_INSIGHTS]}
    assert changed.addons == deployed.addons | added != deployed.addons
    (pods,) = changed.pod_roles.keys() - deployed.pod_roles.keys()
    assert pods.startswith("amazon-cloudwatch/")
    release = changed.releases[RELEASE]
    assert release["revision"] == 2
    tolerations = release["values"]["nvidia-device-plugin"]["tolerations"]
    assert [item["key"] for item in tolerations if item not in _plugin(deployed)] == [TAINT["key"]]


def _plugin(stage: Contents) -> list[dict[str, str]]:
    tolerations = stage.releases[RELEASE]["values"]["nvidia-device-plugin"]["tolerations"]
    assert isinstance(tolerations, list)
    return tolerations


def test_a_change_deletes_what_the_file_no_longer_has(
    deployed: Contents, changed: Contents
) -> None:
    assert deployed.principals - changed.principals == {LEAVER}
    assert deployed.objects.keys() - changed.objects.keys() == {METADATA_POLICY}


def test_a_failed_change_leaves_everything_as_it_was(
    changed: Contents, rolled_back: Contents
) -> None:
    assert f"invalid principal {LEAVER}" in " ".join(rolled_back.seen.output.split())
    assert rolled_back.status == "UPDATE_ROLLBACK_COMPLETE"
    for name in ("kubernetes_version", "addons", "pod_roles", "principals", "objects", "roles"):
        assert getattr(rolled_back, name) == getattr(changed, name), name
    wanted = changed.releases[RELEASE]
    assert rolled_back.releases[RELEASE]["values"] == wanted["values"]
    groups = [stage.seen.clusters[EKS.name]["InstanceGroups"] for stage in (changed, rolled_back)]
    assert groups[0] == groups[1]
    assert rolled_back.seen.stacks == changed.seen.stacks
    assert rolled_back.seen.objects == changed.seen.objects


def test_a_failed_change_came_as_far_as_the_nodes(changed: Contents, rolled_back: Contents) -> None:
    """The rollback started another worker in place of the ended one, and changed the chart once more."""
    before, after = changed.nodes["workers"], rolled_back.nodes["workers"]
    assert after[:-1] == before[:-1] and after[-1] != before[-1]
    assert rolled_back.releases[RELEASE]["revision"] == 4


def test_teardown_leaves_nothing(deployed: Contents, torn_down: Contents) -> None:
    assert not {NETWORK, STORAGE, HYPERPOD} & torn_down.seen.stacks.keys()
    assert deployed.seen.stacks[NETWORK]["VpcId"] not in torn_down.seen.vpcs
    shown = deployed.seen.stacks[HYPERPOD]
    assert shown["LustreFileSystemId"] not in torn_down.seen.file_systems
    assert EKS.name not in torn_down.seen.clusters
    assert torn_down.kubernetes_version is None
    assert torn_down.roles == set()


def test_teardown_deletes_the_interfaces_that_pods_left(
    rolled_back: Contents, torn_down: Contents
) -> None:
    """The function of the stack does it: otherwise their subnet could not be deleted."""
    num_nodes = sum(len(nodes) for nodes in rolled_back.nodes.values())
    assert len(rolled_back.pod_interfaces) == num_nodes + 1  # of the worker that was ended
    assert torn_down.pod_interfaces == set()
    assert "which a pod had" not in torn_down.seen.output


def test_a_log_group_that_reappeared_is_deleted_before_the_deployment(
    torn_down: Contents, again: Contents
) -> None:
    """EKS creates it once more for late entries, which would fail the next deployment."""
    name = ResourceNames(EKS).control_plane_log_group
    assert torn_down.log_groups == {name}
    assert f"deleted log group {name}" in again.seen.output


def test_the_cluster_is_created_again_in_the_same_account(
    changed: Contents, again: Contents
) -> None:
    assert again.status == "CREATE_COMPLETE"
    for name in ("kubernetes_version", "addons"):
        assert getattr(again, name) == getattr(changed, name), name
    assert len(again.log_groups) == len(changed.log_groups)
    # Jobs with copies of images have another name.
    assert {name.removesuffix("-copy") for name in again.objects} == changed.objects.keys()
    assert again.pod_roles.keys() == changed.pod_roles.keys()
    assert {name: len(nodes) for name, nodes in again.nodes.items()} == {
        name: len(nodes) for name, nodes in changed.nodes.items()
    }


def test_a_closed_network_has_endpoints_and_no_nat(aws: LocalAws, again: Contents) -> None:
    ec2 = aws.client("ec2", EKS.region)
    only = [{"Name": "vpc-id", "Values": [again.seen.stacks[NETWORK]["VpcId"]]}]
    found = ec2.describe_vpc_endpoints(Filters=only)["VpcEndpoints"]
    names = {endpoint["ServiceName"].rpartition(f".{EKS.region}.")[2] for endpoint in found}
    assert {"s3", "ecr.api", "ecr.dkr", "eks", "eks-auth", "lambda", "sts"} <= names
    assert ec2.describe_nat_gateways(Filters=only)["NatGateways"] == []


def test_pods_in_a_closed_network_have_images_of_the_clusters_repository(again: Contents) -> None:
    repository = repository_address(EKS, ACCOUNT)
    images = images_of(list(again.objects.values()))
    assert images
    assert [image for image in images if not image.startswith(f"{repository}:")] == []
    values = again.releases[RELEASE]["values"]
    for part in ("nvidia-device-plugin", "aws-efa-k8s-device-plugin"):
        assert values[part]["image"]["repository"] == repository


def test_the_rules_of_the_cdk_accept_each_cluster(
    checkout: Path, document: dict[str, Any], changed_document: dict[str, Any], again: Contents
) -> None:
    """The file of the checkout is the last one."""
    earlier = (EksCluster.model_validate(found) for found in (document, changed_document))
    assert_accepted(*earlier, load_cluster(checkout / FILE))
