"""The local EKS, Kubernetes in it, and functions of custom resources refuse what the services refuse.

The functions run as they were deployed: with their role, their time, and text for numbers.
"""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest

from tests.local_aws.deployment import ACCOUNT, LocalAws
from tests.local_aws.kubernetes import Kubernetes, Refused
from tests.local_aws.template_stacks import (
    REGION,
    Resources,
    Stacks,
    control_plane,
    service_role,
)

NAME = "strict"
NOBODY = f"arn:aws:iam::{ACCOUNT}:role/nobody"
ASSETS = "assets-of-functions"
ASK = "ec2:DescribeNetworkInterfaces"
CODE = """
import time

import boto3


def on_event(event, _context):
    return {"PhysicalResourceId": "waits", "Data": {"Start": time.time()}}


def is_complete(event, _context):
    boto3.client("ec2").describe_network_interfaces()
    if event["RequestType"] == "Delete":
        return {"IsComplete": True}
    seconds = event["ResourceProperties"]["Seconds"]
    assert isinstance(seconds, str)
    return {"IsComplete": time.time() - event["Data"]["Start"] >= float(seconds)}
"""


def part(kind: str, **properties: Any) -> Resources:
    """A resource that belongs to the cluster."""
    belongs = {"ClusterName": {"Ref": "Cluster"}, **properties}
    return {"Part": {"Type": f"AWS::EKS::{kind}", "Properties": belongs}}


@pytest.fixture(scope="module")
def stacks(empty_aws: LocalAws) -> Stacks:
    return Stacks(empty_aws)


@pytest.fixture(scope="module")
def cluster(stacks: Stacks) -> str:
    """The stack of a cluster, to be changed in vain."""
    assert stacks.deploy(NAME, control_plane(NAME)) == "CREATE_COMPLETE"
    return NAME


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (part("Addon", AddonName="no-such"), "no-such specified is not supported"),
        (part("Addon", AddonName="vpc-cni", AddonVersion="1.21"), "version 1.21 of vpc-cni"),
        (
            part("Addon", AddonName="kube-proxy", AddonVersion="v1.34.1-eksbuild.2"),
            "is not supported in 1.33",
        ),
        (part("Addon", AddonName="coredns"), "no add-ons ['vpc-cni']"),
        (part("Addon", AddonName="vpc-cni", ClusterName="other"), "No cluster found"),
        (part("AccessEntry", PrincipalArn=NOBODY), "invalid principal"),
        (
            part(
                "AccessEntry",
                PrincipalArn={"Fn::GetAtt": ["Role", "Arn"]},
                KubernetesGroups=["system:masters"],
            ),
            "belong to Kubernetes",
        ),
        (
            part(
                "PodIdentityAssociation",
                Namespace="default",
                ServiceAccount="default",
                RoleArn={"Fn::GetAtt": ["Role", "Arn"]},
            ),
            "does not admit pods",
        ),
        (part("AccessEntry"), "principalArn"),
    ],
)
def test_parts_that_eks_refuses_are_rolled_back(
    stacks: Stacks, cluster: str, more: Resources, reason: str
) -> None:
    assert (
        stacks.deploy(cluster, control_plane(NAME) | more, kind="UPDATE")
        == "UPDATE_ROLLBACK_COMPLETE"
    )
    assert reason in stacks.reasons(cluster)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Version": "1.35"}, "version update from 1.33 to 1.35"),
        ({"KubernetesNetworkConfig": {"IpFamily": "ipv6", "Other": 1}}, "Other"),
        ({"RoleArn": f"arn:aws:iam::{ACCOUNT}:role/other"}, "RoleArn"),
    ],
)
def test_changes_that_eks_refuses_are_rolled_back(
    stacks: Stacks, cluster: str, changes: dict[str, Any], reason: str
) -> None:
    wanted = control_plane(NAME, **changes)
    assert stacks.deploy(cluster, wanted, kind="UPDATE") == "UPDATE_ROLLBACK_COMPLETE"
    assert reason in stacks.reasons(cluster)


def test_kubernetes_is_upgraded_before_its_addon(empty_aws: LocalAws, stacks: Stacks) -> None:
    def versions() -> tuple[str, str]:
        eks = empty_aws.client("eks", REGION)
        addon = eks.describe_addon(clusterName="upgraded", addonName="kube-proxy")["addon"]
        return eks.describe_cluster(name="upgraded")["cluster"]["version"], addon["addonVersion"]

    def wanted(version: str) -> Resources:
        proxy = part("Addon", AddonName="kube-proxy", AddonVersion=f"v{version}.1-eksbuild.2")
        return control_plane("upgraded", Version=version) | proxy

    assert stacks.deploy("upgraded", wanted("1.33")) == "CREATE_COMPLETE"
    assert versions() == ("1.33", "v1.33.1-eksbuild.2")
    assert stacks.deploy("upgraded", wanted("1.34"), kind="UPDATE") == "UPDATE_COMPLETE"
    assert versions() == ("1.34", "v1.34.1-eksbuild.2")
    assert stacks.deploy("upgraded", wanted("1.33"), kind="UPDATE") == "UPDATE_ROLLBACK_COMPLETE"
    assert versions() == ("1.34", "v1.34.1-eksbuild.2")
    assert stacks.delete("upgraded") == "DELETE_COMPLETE"


def test_a_protected_cluster_is_not_deleted(empty_aws: LocalAws, stacks: Stacks) -> None:
    guarded = control_plane("guarded", DeletionProtection=True)
    assert stacks.deploy("guarded", guarded) == "CREATE_COMPLETE"
    assert stacks.delete("guarded") == "DELETE_FAILED"
    assert "deletion protection" in stacks.reasons("guarded")
    eks = empty_aws.client("eks", REGION)
    eks.update_cluster_config(name="guarded", deletionProtection=False)
    assert stacks.delete("guarded") == "DELETE_COMPLETE"
    assert "guarded" not in eks.list_clusters()["clusters"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"RoleArn": {"Fn::GetAtt": ["Pods", "Arn"]}}, "EKS may not assume"),
        ({"ResourcesVpcConfig": {"SubnetIds": [{"Ref": "Subnet1"}]}}, "two different zones"),
        ({"ComputeConfig": {"Enabled": True}}, "must all be enabled"),
        ({"Version": "1.20"}, "unsupported Kubernetes version"),
    ],
)
def test_clusters_that_eks_refuses_are_not_created(
    stacks: Stacks, changes: dict[str, Any], reason: str
) -> None:
    wanted = control_plane("refused", **changes)
    wanted["Pods"] = service_role("pods.eks.amazonaws.com", "sts:AssumeRole")
    assert stacks.deploy("refused", wanted) == "ROLLBACK_COMPLETE"
    assert reason in stacks.reasons("refused")
    stacks.delete("refused")


def configured(name: str, namespace: str = "default", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"prune": ""}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **more}


def job(image: str) -> dict[str, Any]:
    containers = [{"name": "main", "image": image}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "once"},
        "spec": {"template": {"spec": {"containers": containers}}},
    }


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (configured("here", "nowhere"), 'namespaces "nowhere" not found'),
        (configured("Capitals"), "metadata.name"),
        ({**configured("here"), "kind": "Config"}, 'no matches for kind "Config" in version "v1"'),
        (job("busybox:2"), "field is immutable"),
    ],
)
def test_kubernetes_refuses_an_object_and_applies_the_others(
    found: dict[str, Any], reason: str
) -> None:
    kubernetes = Kubernetes()
    kubernetes.apply([job("busybox:1")])
    with pytest.raises(Refused, match=reason):
        kubernetes.apply([found, configured("other")])
    assert "ConfigMap default/other" in map(str, kubernetes.objects)


def test_kubernetes_prunes_what_was_left_out_in_the_namespaces_it_visits() -> None:
    kubernetes = Kubernetes()
    account = {**configured("stays"), "kind": "ServiceAccount"}
    kubernetes.apply(
        [configured("stays"), configured("goes"), configured("far", "kube-system"), account]
    )
    kubernetes.apply([configured("stays")], prune="prune")
    labelled = {
        str(key) for key, found in kubernetes.objects.items() if "labels" in found["metadata"]
    }
    # kubectl prunes no service accounts, and does not look into namespaces that it does not write to.
    kept = {"ConfigMap default/stays", "ConfigMap kube-system/far", "ServiceAccount default/stays"}
    assert labelled == kept


def test_helm_refuses_values_that_the_chart_does_not_know() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("Chart.yaml", "name: small\nversion: 1.0.0\n")
        files.writestr("values.yaml", "part: {enabled: true}\n")
        switch = {"properties": {"enabled": {"type": "boolean"}}, "additionalProperties": False}
        files.writestr("values.schema.json", json.dumps({"properties": {"part": switch}}))
    kubernetes = Kubernetes()
    chart = archive.getvalue()
    kubernetes.upgrade("default", "one", chart, {"part": {"enabled": False}}, create=False)
    with pytest.raises(Refused, match="part: Additional properties are not allowed"):
        kubernetes.upgrade("default", "one", chart, {"part": {"enable": True}}, create=False)
    assert kubernetes.releases["default", "one"].revision == 1
    with pytest.raises(Refused, match='namespaces "other" not found'):
        kubernetes.upgrade("other", "two", chart, {}, create=False)


@pytest.fixture(scope="module")
def code(empty_aws: LocalAws) -> None:
    """An asset with the code of a function."""
    s3 = empty_aws.client("s3", REGION)
    s3.create_bucket(Bucket=ASSETS, CreateBucketConfiguration={"LocationConstraint": REGION})
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("index.py", CODE)
    s3.put_object(Bucket=ASSETS, Key="code.zip", Body=archive.getvalue())


def caller(*actions: str) -> dict[str, Any]:
    anyone = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}}
    trust = {"Version": "2012-10-17", "Statement": [{**anyone, "Action": "sts:AssumeRole"}]}
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    document = {"Version": "2012-10-17", "Statement": [statement]}
    policies = [{"PolicyName": "Calls", "PolicyDocument": document}] if actions else []
    properties = {"AssumeRolePolicyDocument": trust, "Policies": policies}
    return {"Type": "AWS::IAM::Role", "Properties": properties}


def arn(name: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [name, "Arn"]}


def function(handler: str, role_name: str, **variables: Any) -> dict[str, Any]:
    properties = {
        "Code": {"S3Bucket": ASSETS, "S3Key": "code.zip"},
        "Environment": {"Variables": variables},
        "Handler": handler,
        "Role": arn(role_name),
        "Runtime": "python3.13",
    }
    return {"Type": "AWS::Lambda::Function", "Properties": properties}


def waiting(seconds: int, *, may: str = ASK, calls: str = "lambda:InvokeFunction") -> Resources:
    """A resource that waits, with what the CDK's framework needs for it: three calls, a minute apart."""
    retry = [{"ErrorEquals": ["States.ALL"], "IntervalSeconds": 60, "MaxAttempts": 3}]
    task = {"framework-isComplete-task": {"Retry": retry, "Resource": "${asker}"}}
    definition = {"Fn::Sub": [json.dumps({"States": task}), {"asker": arn("Asker")}]}
    machine = {"DefinitionString": definition, "RoleArn": arn("FrameworkRole")}
    users = {
        "USER_IS_COMPLETE_FUNCTION_ARN": arn("IsComplete"),
        "USER_ON_EVENT_FUNCTION_ARN": arn("OnEvent"),
    }
    resource = {"ServiceToken": arn("Framework"), "Seconds": seconds}
    return {
        "UserRole": caller(may),
        "FrameworkRole": caller(calls, "states:StartExecution"),
        "OnEvent": function("index.on_event", "UserRole"),
        "IsComplete": function("index.is_complete", "UserRole"),
        "Asker": function("framework.isComplete", "FrameworkRole", **users),
        "Machine": {"Type": "AWS::StepFunctions::StateMachine", "Properties": machine},
        "Framework": function(
            "framework.onEvent",
            "FrameworkRole",
            WAITER_STATE_MACHINE_ARN={"Ref": "Machine"},
            **users,
        ),
        "Waits": {"Type": "Custom::HyperPodNodes", "Properties": resource},
    }


def test_a_function_is_called_until_it_is_complete(stacks: Stacks, code: None) -> None:
    assert stacks.deploy("waiting", waiting(150)) == "CREATE_COMPLETE"
    assert stacks.delete("waiting") == "DELETE_COMPLETE"


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (waiting(300), "Operation timed out"),
        (waiting(0, may="ec2:DescribeVpcs"), f"is not authorized to perform {ASK}"),
        (waiting(0, calls="lambda:GetFunction"), "to perform lambda:InvokeFunction"),
    ],
)
def test_what_a_function_cannot_do_fails_its_resource(
    stacks: Stacks, code: None, wanted: Resources, reason: str
) -> None:
    assert stacks.deploy("waiting", wanted) == "ROLLBACK_COMPLETE"
    assert reason in stacks.reasons("waiting")
    stacks.delete("waiting")
