"""The proxy of the cluster file in templates: functions, pods and node settings."""

from __future__ import annotations

import json

from config.node_settings import node_settings
from config.proxy_environment import proxy_environment
from config.resource_names import JOB_ENVIRONMENT, job_namespaces
from stacks.eks_hyperpod_stack import PROXY, node_files
from tests.stacks.synthesized import load, resources
from tests.stacks.test_existing_access import PROXY as URL
from tests.stacks.test_existing_access import cluster, stacks


def test_only_clusters_with_a_proxy_have_variables() -> None:
    assert proxy_environment(load("clusters/eks.yaml")) == {}
    assert PROXY not in node_files(load("clusters/eks.yaml"))
    assert node_settings(load("clusters/slurm.yaml"))["proxy"] == {}


def test_nodes_of_both_schedulers_have_the_proxy() -> None:
    lines = node_files(cluster("eks"))[PROXY].splitlines()
    variables = dict(line.split("=", 1) for line in lines)
    assert variables == proxy_environment(cluster("eks"))
    assert variables["HTTPS_PROXY"] == variables["https_proxy"] == URL
    assert ".svc" in variables["no_proxy"].split(",")
    slurm = node_settings(cluster("slurm"))["proxy"]
    assert slurm["https_proxy"] == URL and ".svc" not in slurm["no_proxy"]


def test_the_function_that_installs_charts_has_the_proxy() -> None:
    functions = resources(stacks("eks")["EksHyperPodStack"], "AWS::Lambda::Function")
    proxied = [
        name
        for name, function in functions.items()
        if function["Properties"].get("Environment", {}).get("Variables", {}).get("https_proxy")
    ]
    in_vpc = [name for name, function in functions.items() if "VpcConfig" in function["Properties"]]
    # The provider framework beside it only calls Lambda, which is a service of AWS.
    assert len(proxied) == 1 and set(proxied) <= set(in_vpc)


def test_pods_of_jobs_have_the_proxy() -> None:
    manifests = resources(
        stacks("eks")["EksHyperPodStack"], "Custom::AWSCDK-EKS-KubernetesResource"
    )
    (objects,) = (
        json.loads(found["Properties"]["Manifest"])
        for found in manifests.values()
        if JOB_ENVIRONMENT in str(found["Properties"]["Manifest"])
    )
    assert {made["metadata"]["namespace"] for made in objects} == set(
        job_namespaces(cluster("eks"))
    )
    assert {made["kind"] for made in objects} == {"ConfigMap"}
    assert all(made["data"] == proxy_environment(cluster("eks")) for made in objects)
