"""Preflight checks of an EKS cluster that exists: its control plane, add-ons, chart, access and objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from config.eks_cluster import EksCluster
from config.facts import addons
from config.facts.addons import ADDON_VERSIONS
from config.kubernetes import AccessEntry
from tests.tools.accounts import cluster_description
from tests.tools.answering_aws import ACCOUNT, AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped_eks
from tests.tools.documents.test_deploy_document import policy
from tests.tools.documents.test_eks_document import actions, used
from tests.tools.preflight.test_existing_vpc import NETWORK
from tools.preflight.existing_eks import kubernetes
from tools.preflight.existing_eks.access import check_entries, check_pod_roles
from tools.preflight.existing_eks.contents import check_contents, needed_addons
from tools.preflight.existing_eks.control_plane import check_control_plane
from tools.preflight.finding import Finding
from tools.preflight.planned import Planned
from tools.preflight.read_only_aws import ReadOnlyAws

NAME = "lab-eks"
GROUP, OTHER = "sg-0123456789abcdef0", "sg-0fedcba9876543210"
TEAM = f"arn:aws:iam::{ACCOUNT}:role/team"
ARN = f"arn:aws:eks:us-west-2:{ACCOUNT}:cluster/{NAME}"
AGENT = "aws-hyperpod/health-monitoring-agent"
VERSIONS = ADDON_VERSIONS["1.34"]
CLUSTER: EksCluster = shipped_eks(
    "eks",
    network=NETWORK | {"security_group_ids": [GROUP]},
    kubernetes={"existing": NAME, "access": [{"principal_arn": TEAM, "level": "edit"}]},
)
LOGS = ["api", "audit", "authenticator", "controllerManager", "scheduler"]
PLACE = {
    "vpcId": NETWORK["vpc_id"],
    "clusterSecurityGroupId": GROUP,
    "securityGroupIds": [],
    "endpointPrivateAccess": True,
    "endpointPublicAccess": False,
}
DESCRIPTION: dict[str, Any] = {
    "name": NAME,
    "arn": ARN,
    "status": "ACTIVE",
    "version": "1.34",
    "accessConfig": {"authenticationMode": "API"},
    "resourcesVpcConfig": PLACE,
    "logging": {"clusterLogging": [{"types": LOGS, "enabled": True}]},
}
DAEMONSETS = (
    "health-monitoring-agent",
    "hyperpod-dependencies-nvidia-device-plugin",
    "hyperpod-dependencies-aws-efa-k8s-device-plugin",
)
VOLUME: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "fsx-kube-system"},
    "spec": {
        "claimRef": {"namespace": "kube-system", "name": "fsx"},
        "csi": {"volumeHandle": "fs-0123456789abcdef0/kube-system"},
    },
}


@dataclass
class Account:
    """An account with the EKS cluster, and all that its add-ons and Kubernetes have."""

    aws: AnsweringAws = field(default_factory=lambda: AnsweringAws(CLUSTER.region))
    addons: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {name: addon(name) for name in VERSIONS}
    )

    def __post_init__(self) -> None:
        self.describe()
        self.aws.answer("eks", "DescribeAddon", self._addon)
        self.aws.answer("eks", "ListAccessEntries", {"accessEntries": []})
        self.aws.answer("eks", "ListPodIdentityAssociations", {"associations": [association()]})
        self.aws.answer("sagemaker", "ListClusters", {"ClusterSummaries": []})
        self.aws.answer("cloudformation", "DescribeStacks", Refusal("ValidationError", ABSENT))
        self.aws.answer(
            "sts", "GetCallerIdentity", {"Account": ACCOUNT, "Arn": TEAM, "UserId": "A"}
        )

    def describe(self, **changes: Any) -> None:
        self.aws.answer("eks", "DescribeCluster", {"cluster": DESCRIPTION | changes})

    def _addon(self, parameters: Parameters) -> dict[str, Any]:
        assert parameters["clusterName"] == NAME
        if parameters["addonName"] not in self.addons:
            raise Refusal("ResourceNotFoundException")
        return {"addon": self.addons[parameters["addonName"]]}

    @property
    def reader(self) -> ReadOnlyAws:
        return ReadOnlyAws(self.aws.session)


ABSENT = "Stack with id x does not exist"


def addon(name: str, **changes: Any) -> dict[str, Any]:
    return {"addonName": name, "addonVersion": VERSIONS[name], "status": "ACTIVE"} | changes


def association(account: str = "kube-system/fsx-csi-controller-sa") -> dict[str, str]:
    namespace, _, name = account.partition("/")
    return {"namespace": namespace, "serviceAccount": name, "associationId": "a-0123"}


@dataclass(frozen=True)
class PlannedParts:
    """Parts of the stack that the checks compare."""

    service_accounts: tuple[str, ...] = (AGENT,)
    objects: tuple[dict[str, Any], ...] = (VOLUME,)


PLANNED = cast(Planned, PlannedParts())


@dataclass
class Kubectl:
    """kubectl that returns workloads and objects."""

    workloads: list[tuple[str, str, str]]
    objects: list[dict[str, Any]]

    def run(self, *arguments: str, text: str | None = None) -> str:
        if text is not None:
            wanted = [item["metadata"]["name"] for item in json.loads(text)["items"]]
            found = [item for item in self.objects if item["metadata"]["name"] in wanted]
            return json.dumps(found[0]) if found else ""
        items = [
            {"kind": kind, "metadata": {"namespace": namespace, "name": name}}
            for kind, namespace, name in self.workloads
        ]
        return json.dumps({"items": items})


@pytest.fixture
def kubectl(monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    program = Kubectl([("DaemonSet", "kube-system", name) for name in DAEMONSETS], [])

    @contextmanager
    def opened(*_: Any, **__: Any) -> Iterator[Kubectl]:
        yield program

    monkeypatch.setattr(kubernetes, "open_kubectl", opened)
    return program


def problems(found: Iterator[Finding]) -> list[Finding]:
    return [one for one in found if one.level != "OK"]


def plane_problems(cluster: EksCluster = CLUSTER, **changes: Any) -> list[Finding]:
    account = Account()
    account.describe(**changes)
    return problems(check_control_plane(account.reader, cluster))


def test_a_cluster_that_fits_has_nothing_to_fix(kubectl: Kubectl) -> None:
    account = Account()
    assert plane_problems() == []
    assert problems(check_entries(account.reader, CLUSTER)) == []
    assert problems(check_pod_roles(PLANNED, account.reader, CLUSTER)) == []
    (metrics,) = problems(check_contents(PLANNED, account.reader, CLUSTER))
    assert metrics.level == "WARN" and "which workspace" in metrics.message


def test_the_checks_need_exactly_the_permissions_that_are_listed(kubectl: Kubectl) -> None:
    account = Account()
    reader = account.reader
    list(check_control_plane(reader, CLUSTER))
    list(check_entries(reader, CLUSTER))
    list(check_pod_roles(PLANNED, reader, CLUSTER))
    list(check_contents(PLANNED, reader, CLUSTER))
    more = used(account.aws.calls) - policy("Preflight") - actions("PreflightEks")
    assert more - {"sts:GetCallerIdentity"} == actions("PreflightExistingEks")


def test_a_file_without_one_asks_nothing() -> None:
    aws = AnsweringAws("us-west-2")
    assert list(check_control_plane(ReadOnlyAws(aws.session), shipped_eks("eks"))) == []
    assert aws.calls == []


def test_a_cluster_that_does_not_exist_is_reported_once(kubectl: Kubectl) -> None:
    account = Account()
    account.aws.answer("eks", "DescribeCluster", Refusal("ResourceNotFoundException"))
    (found,) = check_control_plane(account.reader, CLUSTER)
    assert found.level == "FAIL" and "does not exist in us-west-2" in found.message
    assert list(check_contents(PLANNED, account.reader, CLUSTER)) == []


@pytest.mark.parametrize(
    ("changes", "level", "message", "action"),
    [
        ({"status": "UPDATING"}, "FAIL", "is UPDATING", "wait"),
        ({"version": "1.32"}, "WARN", "supports 1.33 to 1.35", "developer guide"),
        (
            {"accessConfig": {"authenticationMode": "CONFIG_MAP"}},
            "FAIL",
            "need access entries",
            f"--name {NAME} --access-config authenticationMode=API_AND_CONFIG_MAP",
        ),
        (
            {"resourcesVpcConfig": PLACE | {"vpcId": "vpc-other"}},
            "FAIL",
            "is in vpc-other",
            "set network.vpc_id to vpc-other",
        ),
        ({"kubernetesNetworkConfig": {"ipFamily": "ipv6"}}, "FAIL", "IPv6", "ipv4"),
        (
            {
                "resourcesVpcConfig": PLACE
                | {
                    "endpointPrivateAccess": False,
                    "endpointPublicAccess": True,
                    "publicAccessCidrs": ["203.0.113.0/24"],
                }
            },
            "WARN",
            "only from 203.0.113.0/24",
            "endpointPrivateAccess=true",
        ),
        (
            {"logging": {"clusterLogging": [{"types": LOGS[:3], "enabled": True}]}},
            "WARN",
            "does not log controllerManager, scheduler",
            '"types":["controllerManager","scheduler"]',
        ),
    ],
)
def test_what_hyperpod_or_the_file_needs_otherwise(
    changes: dict[str, Any], level: str, message: str, action: str
) -> None:
    (found,) = plane_problems(**changes)
    assert found.level == level
    assert message in found.message
    assert action in found.action


def test_secrets_without_the_key_of_the_file_are_reported() -> None:
    with_key = CLUSTER.model_copy(
        update={"storage": CLUSTER.storage.model_copy(update={"kms": "create"})}
    )
    (found,) = plane_problems(with_key)
    assert found.level == "WARN" and "associate-encryption-config" in found.action
    encrypted = [{"resources": ["secrets"], "provider": {"keyArn": "arn"}}]
    assert plane_problems(with_key, encryptionConfig=encrypted) == []


def rule(port: int, **peer: Any) -> dict[str, Any]:
    return {"IpProtocol": "tcp", "FromPort": port, "ToPort": port, **peer}


def reach_problems(rules: dict[str, list[dict[str, Any]]]) -> list[Finding]:
    """Findings for a control plane with a group of its own."""
    account = Account()
    account.describe(resourcesVpcConfig=PLACE | {"clusterSecurityGroupId": OTHER})

    def groups(parameters: Parameters) -> dict[str, Any]:
        (group,) = parameters["GroupIds"]
        return {"SecurityGroups": [{"GroupId": group, "IpPermissions": rules.get(group, [])}]}

    account.aws.answer("ec2", "DescribeSecurityGroups", groups)
    return problems(check_control_plane(account.reader, CLUSTER))


def test_nodes_and_control_plane_reach_each_other_by_rules() -> None:
    to_plane = rule(443, UserIdGroupPairs=[{"GroupId": GROUP}])
    to_nodes = rule(10250, IpRanges=[{"CidrIp": "10.0.0.0/8"}])
    assert reach_problems({OTHER: [to_plane], GROUP: [to_nodes]}) == []
    (found,) = reach_problems({OTHER: [to_plane]})
    permission = "IpProtocol=tcp,FromPort=10250,ToPort=10250,UserIdGroupPairs"
    assert f"--group-id {GROUP} --ip-permissions {permission}=[{{GroupId={OTHER}}}]" in found.action
    narrow = rule(443, IpRanges=[{"CidrIp": "10.7.0.0/24"}])
    (found,) = reach_problems({OTHER: [narrow], GROUP: [to_nodes]})
    permission = "IpProtocol=tcp,FromPort=443,ToPort=443,UserIdGroupPairs"
    assert f"--group-id {OTHER} --ip-permissions {permission}=[{{GroupId={GROUP}}}]" in found.action


def test_another_hyperpod_cluster_of_the_same_control_plane_is_refused() -> None:
    account = Account()
    summary = {
        "ClusterArn": f"arn:aws:sagemaker:us-west-2:{ACCOUNT}:cluster/abcdef012345",
        "ClusterName": "theirs",
        "CreationTime": datetime(2026, 1, 1, tzinfo=UTC),
        "ClusterStatus": "InService",
    }
    account.aws.answer("sagemaker", "ListClusters", {"ClusterSummaries": [summary]})
    described = cluster_description("theirs", []) | {"Orchestrator": {"Eks": {"ClusterArn": ARN}}}
    account.aws.answer("sagemaker", "DescribeCluster", described)
    (found,) = problems(check_control_plane(account.reader, CLUSTER))
    assert found.level == "FAIL" and "orchestrates HyperPod cluster theirs" in found.message


@pytest.mark.parametrize("name", [needed.name for needed in needed_addons(CLUSTER)])
def test_a_missing_addon_has_its_command(kubectl: Kubectl, name: str) -> None:
    account = Account()
    del account.addons[name]
    (found, _) = problems(check_contents(PLANNED, account.reader, CLUSTER))
    assert found.level == "FAIL" and found.subject == f"add-on {name}"
    assert f"--cluster-name {NAME} --addon-name {name} --addon-version {VERSIONS[name]} " in (
        found.action
    )


def test_an_addon_that_is_installed_otherwise_is_accepted(kubectl: Kubectl) -> None:
    account = Account()
    del account.addons[addons.COREDNS]
    kubectl.workloads.append(("Deployment", "kube-system", "coredns"))
    (metrics,) = problems(check_contents(PLANNED, account.reader, CLUSTER))
    assert metrics.subject == f"add-on {addons.OBSERVABILITY}"


@pytest.mark.parametrize(
    ("changes", "level", "message"),
    [
        ({"addonVersion": "v1.18.1-eksbuild.3"}, "FAIL", "1.18.3 or later"),
        ({"addonVersion": "v1.22.1-eksbuild.1"}, "FAIL", "v1.22.1-eksbuild.1"),
        (
            {"status": "DEGRADED", "health": {"issues": [{"message": "no nodes"}]}},
            "WARN",
            "is DEGRADED: no nodes",
        ),
    ],
)
def test_versions_and_states_of_addons_count(
    kubectl: Kubectl, changes: dict[str, Any], level: str, message: str
) -> None:
    account = Account()
    account.addons[addons.VPC_CNI] |= changes
    found = problems(check_contents(PLANNED, account.reader, CLUSTER))[0]
    assert (found.level, found.subject) == (level, "add-on vpc-cni")
    assert message in found.message


def test_a_driver_without_a_role_is_reported(kubectl: Kubectl) -> None:
    account = Account()
    account.aws.answer("eks", "ListPodIdentityAssociations", {"associations": []})
    found = problems(check_contents(PLANNED, account.reader, CLUSTER))[0]
    assert found.level == "WARN" and "its controller has no role" in found.message
    account.addons[addons.LUSTRE_DRIVER]["serviceAccountRoleArn"] = TEAM
    assert len(problems(check_contents(PLANNED, account.reader, CLUSTER))) == 1


def test_a_missing_part_of_the_chart_has_its_command(kubectl: Kubectl) -> None:
    kubectl.workloads = [("DaemonSet", "kube-system", "health-monitoring-agent")]
    found = problems(check_contents(PLANNED, Account().reader, CLUSTER))[-1]
    assert (found.level, found.subject) == ("FAIL", "HyperPod's chart")
    assert "nvidia-device-plugin, efa-k8s-device-plugin" in found.message
    assert "helm install hyperpod-dependencies" in found.action


def test_divided_gpus_need_the_operator(kubectl: Kubectl) -> None:
    groups = [
        group.model_copy(update={"mig_profile": "1g.10gb"}) if group.hardware.num_gpus else group
        for group in CLUSTER.instance_groups
    ]
    divided = CLUSTER.model_copy(update={"instance_groups": groups})
    levels = []
    for workload in (None, ("Deployment", "gpu-operator", "gpu-operator")):
        kubectl.workloads += [workload] if workload else []
        levels += [
            found.level
            for found in check_contents(PLANNED, Account().reader, divided)
            if found.subject == "NVIDIA's GPU Operator"
        ]
    assert levels == ["FAIL", "OK"]


def test_without_kubernetes_the_rest_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreached(*_: Any, **__: Any) -> Any:
        raise ValueError("EKS cluster lab-eks does not answer")

    monkeypatch.setattr(kubernetes, "open_kubectl", unreached)
    account = Account()
    del account.addons[addons.CERT_MANAGER]
    found = problems(check_contents(PLANNED, account.reader, CLUSTER))
    unknown = {one.subject for one in found if one.level == "UNKNOWN"}
    assert unknown == {"add-on cert-manager", "HyperPod's chart", f"EKS cluster {NAME}"}
    assert all("does not answer" in one.message for one in found if one.level == "UNKNOWN")


def test_objects_of_others_with_the_stacks_names_are_refused(kubectl: Kubectl) -> None:
    kubectl.objects.append(VOLUME)
    found = problems(check_contents(PLANNED, Account().reader, CLUSTER))[-1]
    assert found.level == "FAIL"
    assert "has a PersistentVolume fsx-kube-system of others" in found.message
    kept = VOLUME | {"metadata": {**VOLUME["metadata"], "labels": {"aws.cdk.eks/prune-c8": ""}}}
    kubectl.objects[:] = [kept]
    left = problems(check_contents(PLANNED, Account().reader, CLUSTER))[-1]
    assert left.level == "FAIL"
    assert "of an earlier deployment, for fs-0123456789abcdef0" in left.message
    same = {"file_system_id": "fs-0123456789abcdef0", "mount_name": "abcdev4v"}
    document = CLUSTER.model_dump(exclude_unset=True)
    document["storage"]["lustre"]["existing"] = same
    again = EksCluster.model_validate(document)
    assert len(problems(check_contents(PLANNED, Account().reader, again))) == 1


def test_access_that_exists_is_refused() -> None:
    account = Account()
    account.aws.answer("eks", "ListAccessEntries", {"accessEntries": [TEAM]})
    account.aws.answer("eks", "ListPodIdentityAssociations", {"associations": [association(AGENT)]})
    (entry,) = check_entries(account.reader, CLUSTER)
    assert entry.level == "FAIL" and "remove kubernetes.access[0]" in entry.action
    (role,) = check_pod_roles(PLANNED, account.reader, CLUSTER)
    assert role.level == "FAIL" and "--association-id a-0123" in role.action
    taken_away = AccessEntry(principal_arn=TEAM, level="none")
    kubernetes = CLUSTER.kubernetes.model_copy(update={"access": [taken_away]})
    without = CLUSTER.model_copy(update={"kubernetes": kubernetes})
    assert list(check_entries(account.reader, without)) == []
