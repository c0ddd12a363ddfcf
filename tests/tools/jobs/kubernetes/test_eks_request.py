"""Cluster resources that a Kubernetes job requests, and refused requests."""

from __future__ import annotations

from typing import Any

import pytest

from config.eks_cluster import Taint
from seqlm.launch.kubernetes_job import job_manifest
from tests.job_schemas.validation import check, pod_templates
from tests.tools.jobs.kubernetes.eks_jobs_made import made, pod, shipped, with_group

P5 = shipped("eks-p5")
TEAM = "proteins"
NEAR = "topology.k8s.aws/network-node-layer-3"


def test_devices_are_those_of_the_type() -> None:
    limits = pod(made(cluster=P5, team=TEAM))["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8" and limits["vpc.amazonaws.com/efa"] == "32"
    half = made(cluster=P5, team=TEAM, gpus_per_node=4)
    assert (half.resources.num_gpus, half.resources.num_efa, half.num_processes) == (4, 16, 4)
    assert half.resources.num_cpus < 192 / 2 and half.resources.memory_gib < 2048 / 2


@pytest.mark.parametrize(
    "instance_type", ["ml.g5.2xlarge", "ml.g6.4xlarge", "ml.p5.48xlarge", "ml.g5.8xlarge"]
)
def test_requests_efa_on_types_that_have_it(instance_type: str) -> None:
    cluster = with_group(shipped(), "workers", instance_type=instance_type)
    job = made(cluster=cluster)
    limits = pod(job)["containers"][0]["resources"]["limits"]
    names = {variable["name"] for variable in pod(job)["containers"][0]["env"]}
    has_efa = instance_type in ("ml.p5.48xlarge", "ml.g5.8xlarge")
    assert ("vpc.amazonaws.com/efa" in limits) == has_efa == ("FI_PROVIDER" in names)
    assert job_efa_alone(cluster) == 0


def job_efa_alone(cluster: Any) -> int:
    """One node needs no network."""
    return made(cluster=cluster, nodes="1").resources.num_efa


def test_pods_prefer_what_is_paid_for_already() -> None:
    cluster = shipped()
    workers = next(group for group in cluster.instance_groups if group.name == "workers")
    spot = workers.model_copy(update={"name": "cheap", "capacity": "spot"})
    mixed = cluster.model_copy(update={"instance_groups": [*cluster.instance_groups, spot]})
    job = made(cluster=mixed)
    [preference] = pod(job)["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert preference["weight"] == 50
    assert preference["preference"]["matchExpressions"][0]["values"] == ["workers"]
    check(job_manifest(job))
    assert "affinity" not in pod(made(cluster=cluster))
    assert "affinity" not in pod(made(cluster=mixed, group="cheap"))


def test_data_take_no_gpu() -> None:
    job = made(stage="data")
    assert (job.num_pods, job.resources.num_gpus, job.resources.num_cpus) == (1, 0, 8)
    assert "nvidia.com/gpu" not in pod(job)["containers"][0]["resources"]["limits"]


def test_nodes_that_are_fit_for_it() -> None:
    assert pod(made(cluster=P5, team=TEAM))["nodeSelector"] == {
        "sagemaker.amazonaws.com/node-health-status": "Schedulable",
        "sagemaker.amazonaws.com/deep-health-check-status": "Passed",
        "node.kubernetes.io/instance-type": "ml.p5.48xlarge",
    }
    plain = pod(made(group="workers"))["nodeSelector"]
    assert plain["sagemaker.amazonaws.com/instance-group-name"] == "workers"
    assert "sagemaker.amazonaws.com/deep-health-check-status" not in plain


def test_taints_of_the_groups_are_tolerated_and_no_others() -> None:
    taints = [
        Taint(key="nvidia.com/gpu", effect="NoSchedule"),
        Taint(key="a/b", value="c", effect="NoExecute"),
    ]
    assert pod(made(cluster=with_group(shipped(), "workers", taints=taints)))["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "a/b", "operator": "Equal", "value": "c", "effect": "NoExecute"},
    ]
    assert pod(made())["tolerations"] == []


def test_team_queue_and_priority_are_labels_of_job_and_pods() -> None:
    manifest = job_manifest(made(cluster=P5, team=TEAM, priority="urgent"))
    assert manifest["metadata"]["namespace"] == "hyperpod-ns-proteins"
    for labels in (
        manifest["metadata"]["labels"],
        pod_templates(manifest)[0]["metadata"]["labels"],
    ):
        assert labels["kueue.x-k8s.io/queue-name"] == "hyperpod-ns-proteins-localqueue"
        assert labels["kueue.x-k8s.io/priority-class"] == "urgent-priority"
    assert "kueue.x-k8s.io/queue-name" not in job_manifest(made())["metadata"]["labels"]
    assert "annotations" not in pod_templates(manifest)[0]["metadata"]


@pytest.mark.parametrize("wish", ["preferred", "required"])
def test_nodes_near_each_other_are_annotations_of_job_and_pods(wish: str) -> None:
    manifest = job_manifest(made(cluster=P5, team=TEAM, **{f"{wish}_topology": NEAR}))
    check(manifest)
    for metadata in (manifest["metadata"], pod_templates(manifest)[0]["metadata"]):
        found = {
            name: value for name, value in metadata["annotations"].items() if "topology" in name
        }
        assert found == {f"kueue.x-k8s.io/podset-{wish}-topology": NEAR}


def test_a_team_takes_its_quota() -> None:
    assert made(cluster=P5, team=TEAM).num_pods == 6
    assert made(cluster=P5, team="structure").num_pods == 2
    assert made(cluster=P5, team=TEAM, nodes="8").num_pods == 8


def test_names_are_labels_and_never_the_same() -> None:
    jobs = [made(f"name={'Very_Long.name' * 9}", stage="evaluate") for _ in range(3)]
    names = {job.name for job in jobs}
    assert len(names) == 3 and all(len(name) <= 40 and name == name.lower() for name in names)
    check(job_manifest(made(f"name={'Very_Long.name' * 9}")))
    # Kubernetes takes 63 characters for a label's value; two long names are two runs all the same.
    runs = {job.run for job in [*jobs, made(f"name={'Very_Long.name' * 8}")]}
    assert len(runs) == 2 and all(len(run) <= 63 for run in runs)


@pytest.mark.parametrize(
    ("overrides", "wanted", "problem"),
    [
        ([], {"image": None}, "IMAGE: got none; a job names its image by digest"),
        (
            [],
            {"image": "registry.example/esm2:latest"},
            "IMAGE: got registry.example/esm2:latest; a job names",
        ),
        ([], {"image": "/fsx/images/esm2.sqsh"}, "IMAGE: got /fsx/images/esm2.sqsh"),
        ([], {"nodes": "3"}, "NODES: got 3; workers has 2 in the cluster file"),
        ([], {"nodes": "0"}, "NODES: got 0; expected a number from 1"),
        ([], {"nodes": "2-1"}, "NODES: got 2-1; expected a number from 1, or a range such as 2-3"),
        ([], {"nodes": "2-3"}, "NODES: got 2-3; workers has 2 in the cluster file"),
        (
            [],
            {"stage": "evaluate", "nodes": "1-2"},
            "NODES: got 1-2; only training continues with another number of nodes",
        ),
        (
            ["parallel.mode=fsdp", "parallel.shard_size=2"],
            {"nodes": "1-2"},
            "shard_size: got 2; it must divide the number of processes, which is 1 on 1 node(s)",
        ),
        (
            [],
            {"nodes": "1-2", "cluster": with_group(shipped(), "workers", capacity="spot")},
            "NODES: got 1-2; HyperPod's operator does not change the number of spot nodes, which workers has",
        ),
        (
            [],
            {"preferred_topology": "rack", "cluster": P5, "team": TEAM},
            "--preferred-topology: got rack; allowed are topology.k8s.aws/network-node-layer-1",
        ),
        (
            [],
            {"preferred_topology": NEAR, "required_topology": NEAR, "cluster": P5, "team": TEAM},
            "--preferred-topology, --required-topology: give one of them",
        ),
        (
            [],
            {"required_topology": NEAR},
            "--required-topology: Kueue looks for such nodes, for jobs of a team",
        ),
        ([], {"stage": "data", "nodes": "2"}, "NODES: got 2; data are prepared on 1 node"),
        (
            [],
            {"stage": "bandwidth", "nodes": "1"},
            "NODES: got 1, with one process; an all-reduce needs two",
        ),
        (["lr=3"], {"stage": "bandwidth"}, "lr=3: the bandwidth job takes at_least=<GB/s>"),
        ([], {"hang_seconds": 59}, "--hang-seconds: got 59; give at least 60"),
        (
            [],
            {"namespace": "ada", "cluster": shipped(training_operator="kubeflow")},
            "--namespace: got ada; HyperPod resumes Kubeflow's jobs in kubeflow and in namespaces",
        ),
        ([], {"max_retries": -1}, "--max-retries: got -1; allowed are 0 to 1000"),
        ([], {"group": "gpu"}, "--group: got gpu; the cluster file has system, workers"),
        ([], {"gpus_per_node": 2}, "--gpus-per-node: got 2; ml.g5.8xlarge has 1"),
        ([], {"team": "a"}, "--team: got a; the cluster file has no teams"),
        ([], {"priority": "urgent"}, "--priority: got urgent; the cluster file has none"),
        ([], {"cluster": P5}, "--team: got none; give the team of the job: proteins, structure"),
        (
            [],
            {"cluster": P5, "team": "x"},
            "--team: got x; the cluster file has proteins, structure",
        ),
        (
            [],
            {"cluster": P5, "team": "structure", "nodes": "4"},
            "NODES: got 4; the team's quota of ml.p5.48xlarge is 2 node(s), 3 with all that it may borrow",
        ),
        (
            [],
            {"cluster": P5, "team": TEAM, "priority": "x"},
            "--priority: got x; the cluster file has urgent, training, sweep",
        ),
        ([], {"folder": "/home/ada"}, "--folder: got /home/ada; pods share /fsx"),
        (["runs=/root/runs"], {}, "runs: got /root/runs; pods share /fsx"),
        (["data.path=../../../data"], {}, "data.path: got ../../../data; pods share /fsx"),
        (["data.downloads=/tmp"], {}, "data.downloads: got /tmp; pods share /fsx"),
        (
            ["data.source=[mine.fasta]"],
            {},
            "data: mine.fasta is on this machine; pods read below /fsx",
        ),
        (
            ["inference.input=[mine.fasta]"],
            {"stage": "embed"},
            "inference.input: mine.fasta is on this machine; pods read below /fsx, https:// and s3://",
        ),
        (["task.kind=binary", "task.table=[mine.csv]"], {}, "data: mine.csv is on this machine"),
        (
            ["task.kind=binary", "task.split.clusters=mine.tsv"],
            {},
            "data: mine.tsv is on this machine",
        ),
        (
            ["parallel.mode=fsdp", "parallel.shard_size=3"],
            {},
            "shard_size: got 3; it must divide the number of processes, which is 2 on 2 node(s)",
        ),
    ],
)
def test_reports_what_does_not_fit(
    overrides: list[str], wanted: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError) as raised:
        made(*overrides, **wanted)
    assert problem in str(raised.value)


def test_reports_all_problems_at_once() -> None:
    with pytest.raises(ValueError, match=r"^3 problem\(s\)"):
        made("runs=/root/runs", image=None, nodes="9")
