"""Pods that the stack installs, against the taints that nodes of a group may have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from config.eks_cluster import EksCluster, lasting_groups
from config.facts import addons
from config.facts.instance_catalogue import instance_type
from manifests.chart_values import TYPE_LABEL, chart_values
from tests.manifests.helm_runs import IMAGE_REPOSITORY, STAND_INS, render
from tests.stacks.eks_cases import addons as installed_addons
from tests.stacks.eks_cases import hyperpod, objects
from tests.stacks.synthesized import REPOSITORY, load, read_templates, resources, synthesize

FILE = "clusters/eks-p5.yaml"
PATCH = "Custom::AWSCDK-EKS-KubernetesPatch"
HEALTH = {
    "key": "sagemaker.amazonaws.com/node-health-status",
    "value": "Unschedulable",
    "effect": "NoSchedule",
}
"""Taint that HyperPod sets on a node with a fault or in a deep health check."""
OWN = [
    {"key": "lab", "value": "structure", "effect": "NoSchedule"},
    {"key": "owner", "effect": "NoExecute"},
]
DEVICE = {"gpu": "nvidia.com/gpu", "neuron": "aws.amazon.com/neuron"}
"""Keys of taints that people set on nodes with accelerators."""
EVERY_NODE = {
    addons.VPC_CNI: "aws/eks-charts 52396092, stable/aws-vpc-cni/values.yaml: operator Exists",
    addons.KUBE_PROXY: "Kubernetes's own: operator Exists",
    addons.POD_IDENTITY_AGENT: "aws/eks-pod-identity-agent, values.yaml: operator Exists",
    addons.LUSTRE_DRIVER: "aws-fsx-csi-driver 5b227125, values.yaml: node.tolerateAllTaints true",
    addons.CONTAINER_INSIGHTS: "aws-observability/helm-charts, values.yaml: operator Exists",
}
"""Add-ons whose DaemonSets tolerate every taint, with the source."""
PERMANENT_NODES = {
    addons.COREDNS,
    addons.CERT_MANAGER,
    addons.TRAINING_OPERATOR,
    addons.TASK_GOVERNANCE,
}
"""Add-ons of Deployments, which need a node that admits all pods."""
UNPROVEN = {addons.OBSERVABILITY}
"""Add-ons whose tolerations are published nowhere; docs/account-checks.md has a check."""


@pytest.fixture(scope="module")
def tainted() -> tuple[EksCluster, dict[str, Any]]:
    """A cluster whose groups with accelerators have taints of every kind, and its stack."""

    def group(name: str, type_name: str, device: str) -> dict[str, Any]:
        taints = [*OWN, {"key": DEVICE[device], "effect": "NoSchedule"}]
        return {"name": name, "instance_type": type_name, "num_instances": 1, "taints": taints}

    system = {"name": "system", "instance_type": "ml.m5.4xlarge", "num_instances": 2}
    groups = [
        system,
        group("p5", "ml.p5.48xlarge", "gpu"),
        group("trn", "ml.trn1.32xlarge", "neuron"),
    ]
    cluster = load(FILE, instance_groups=groups, training_operator="kubeflow")
    assert isinstance(cluster, EksCluster)
    return cluster, read_templates(synthesize(cluster))["EksHyperPodStack"]


def tolerates(pod: dict[str, Any], taint: dict[str, str]) -> bool:
    """Kubernetes documentation, "Taints and Tolerations"; a toleration without a key matches every key."""
    return any(
        found.get("key") in (None, taint["key"])
        and found.get("effect") in (None, taint["effect"])
        and (found.get("operator") == "Exists" or found.get("value") == taint.get("value"))
        for found in pod.get("tolerations", [])
    )


def chart_objects(
    cluster: EksCluster, stack: dict[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield kind, name and pod of the chart's objects, patched as the stack does."""
    patches = {
        properties["ResourceName"]: json.loads(properties["ApplyPatchJson"])["spec"]["template"][
            "spec"
        ]
        for found in resources(stack, PATCH).values()
        if "template" in (properties := found["Properties"])["ApplyPatchJson"]
    }
    chart = STAND_INS / "hyperpod"
    for made in render(
        chart, chart_values(cluster, IMAGE_REPOSITORY), release="hyperpod-dependencies"
    ):
        if made["kind"] in ("DaemonSet", "Deployment"):
            name = made["metadata"]["name"]
            pod = made["spec"]["template"]["spec"] | patches.pop(
                f"{made['kind'].lower()}/{name}", {}
            )
            yield made["kind"], name, pod
    assert not patches, "patches of objects that do not exist"


def is_on(pod: dict[str, Any], type_name: str) -> bool:
    required = pod.get("affinity", {}).get("nodeAffinity", {})
    terms = required.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get(
        "nodeSelectorTerms", []
    )
    types = [
        found for term in terms for found in term["matchExpressions"] if found["key"] == TYPE_LABEL
    ]
    return all(type_name in found["values"] for found in types)


def test_every_daemon_runs_on_each_tainted_node_and_every_deployment_on_a_permanent_one(
    tainted: tuple[EksCluster, dict[str, Any]],
) -> None:
    cluster, stack = tainted
    assert [group.name for group in lasting_groups(cluster)] == ["system"]
    refused = []
    daemons = 0
    for kind, name, pod in chart_objects(cluster, stack):
        if kind == "Deployment":
            # Also while all permanent nodes are in deep health checks.
            refused += [] if tolerates(pod, HEALTH) else [f"{name}: {HEALTH['key']}"]
            continue
        daemons += 1
        for group in cluster.instance_groups:
            if not group.taints or not is_on(pod, group.instance_type):
                continue
            device = DEVICE["gpu" if instance_type(group.instance_type).num_gpus else "neuron"]
            taints = [*OWN, HEALTH, {"key": device, "effect": "NoSchedule"}]
            refused += [
                f"{name} on {group.name}: {taint['key']}"
                for taint in taints
                if not tolerates(pod, taint)
            ]
    assert refused == [] and daemons >= 5


def test_our_own_pods_need_no_tainted_node() -> None:
    """They have no node selector or affinity, so the permanent nodes admit them."""
    kinds = {"Deployment", "DaemonSet", "Job", "CronJob"}
    found = [made for made in objects("eks_every_option") if made["kind"] in kinds]
    assert {made["kind"] for made in found} >= {"Deployment", "Job"}
    for made in found:
        spec = made["spec"].get("jobTemplate", made)["spec"]
        assert (
            made["kind"] != "DaemonSet"
            and not {"nodeSelector", "affinity"} & spec["template"]["spec"].keys()
        )


@pytest.mark.parametrize("case", [FILE, "eks_every_option"])
def test_every_add_on_is_classified(case: str) -> None:
    assert hyperpod(case)
    names = installed_addons(case).keys()
    assert names <= EVERY_NODE.keys() | PERMANENT_NODES | UNPROVEN
    checks = (REPOSITORY / "docs" / "account-checks.md").read_text()
    assert "kubectl get daemonsets -A" in checks
