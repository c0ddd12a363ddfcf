"""What a job of Kubernetes takes and is told, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from config.eks_cluster import Taint
from tests.job_schemas.validation import check, pod_templates
from tests.tools.eks_jobs_made import IMAGE, made, shipped, with_group
from workloads.esm2.launch.kubernetes_job import config_map, job_manifest
from workloads.esm2.launch.pod_job import PodJob

P5 = shipped("eks-p5")
TEAM = "proteins"
RETRIES = {"train": 10, "data": 3, "evaluate": 3, "predict": 10, "bandwidth": 1}
NEAR = "topology.k8s.aws/network-node-layer-3"
CASES = [
    (name, operator, stage, overrides)
    for name in ("eks", "eks-p5")
    for operator in ("hyperpod", "kubeflow")
    for stage, overrides in (
        ("data", ()),
        ("train", ("parallel.mode=ddp",)),
        ("train", ("parallel.mode=fsdp",)),
        ("evaluate", ("evaluate.split=test",)),
        ("predict", ("inference.input=[sample]",)),
        ("bandwidth", ()),
    )
]


def of(name: str, operator: str, stage: str, overrides: tuple[str, ...]) -> PodJob:
    team = TEAM if name == "eks-p5" else None
    cluster = shipped(name, training_operator=operator)
    return made(*overrides, stage=stage, cluster=cluster, team=team)


def pod(job: PodJob) -> dict[str, Any]:
    return dict(pod_templates(job_manifest(job))[0]["spec"])


@pytest.mark.parametrize(("name", "operator", "stage", "overrides"), CASES)
def test_manifests_are_as_the_schemas_want_them(
    name: str, operator: str, stage: str, overrides: tuple[str, ...]
) -> None:
    job = of(name, operator, stage, overrides)
    check(job_manifest(job))
    check(config_map(job))


@pytest.mark.parametrize(("name", "operator", "stage", "overrides"), CASES)
def test_what_pods_mount_is_there(name: str, operator: str, stage: str, overrides: tuple[str, ...]) -> None:
    job = of(name, operator, stage, overrides)
    spec = pod(job)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for container in [*spec["initContainers"], *spec["containers"]]:
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) == set(volumes)
        # The check makes the working folder.
        assert mounts["shared"] == "/fsx"
        assert container["workingDir"] == ("/" if container["name"] == "check" else job.work_folder)
    assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == "fsx"
    assert volumes["run"]["configMap"]["name"] == config_map(job)["metadata"]["name"]
    assert job.work_folder == f"/fsx/{job.namespace}/esm2"


@pytest.mark.parametrize(("name", "operator", "stage", "overrides"), CASES)
def test_processes_may_nothing_that_training_does_not_need(
    name: str, operator: str, stage: str, overrides: tuple[str, ...]
) -> None:
    spec = pod(of(name, operator, stage, overrides))
    assert spec["automountServiceAccountToken"] is False
    security = spec["securityContext"]
    assert security["runAsNonRoot"] is True and security["runAsUser"] == security["runAsGroup"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*spec["initContainers"], *spec["containers"]]:
        assert container["image"] == IMAGE
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert container["resources"]["requests"] == container["resources"]["limits"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)


@pytest.mark.parametrize(("name", "operator", "stage", "overrides"), CASES)
def test_every_job_is_resumed(name: str, operator: str, stage: str, overrides: tuple[str, ...]) -> None:
    """By what each operator reads: annotations with Kubeflow's, the run policy with HyperPod's."""
    manifest = job_manifest(of(name, operator, stage, overrides))
    assert manifest["metadata"]["namespace"].startswith("hyperpod")
    spec = pod_templates(manifest)[0]["spec"]
    assert spec["nodeSelector"]["sagemaker.amazonaws.com/node-health-status"] == "Schedulable"
    assert spec["terminationGracePeriodSeconds"] == 180
    policy = manifest["spec"]["runPolicy"]
    # A job that is over keeps no GPU.
    assert policy["cleanPodPolicy"] == "Running"
    if operator == "kubeflow":
        pods = sum(replica["replicas"] for replica in manifest["spec"]["pytorchReplicaSpecs"].values())
        # Restarts of all pods count, and a fault may start each of them again.
        assert policy["backoffLimit"] == RETRIES[stage] * pods
        annotations = manifest["metadata"]["annotations"]
        assert annotations["sagemaker.amazonaws.com/enable-job-auto-resume"] == "true"
        assert annotations["sagemaker.amazonaws.com/job-max-retry-count"] == str(RETRIES[stage])
        replicas = manifest["spec"]["pytorchReplicaSpecs"]
        assert {replica["restartPolicy"] for replica in replicas.values()} == {"OnFailure"}
        assert all(
            replica["template"]["spec"]["containers"][0]["name"] == "pytorch" for replica in replicas.values()
        )
    else:
        assert policy["jobMaxRetryCount"] == RETRIES[stage]
        assert policy["restartPolicy"]["evalPeriodSeconds"] > 0
        assert ("logMonitoringConfiguration" in policy) == (stage != "data")


def test_several_pods_of_kubeflow_have_no_master() -> None:
    """With one, the operator adds a container to the others whose image closed networks do not reach."""
    spec = job_manifest(of("eks-p5", "kubeflow", "train", ()))["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    assert {role: replica["replicas"] for role, replica in replicas.items()} == {"Worker": 6}
    assert (spec["elasticPolicy"]["minReplicas"], spec["elasticPolicy"]["maxReplicas"]) == (6, 6)
    alone = job_manifest(of("eks", "kubeflow", "evaluate", ()))["spec"]
    assert set(alone["pytorchReplicaSpecs"]) == {"Master"} and "elasticPolicy" not in alone


def command(job: PodJob) -> list[str]:
    [container] = pod(job)["containers"]
    return [*container["command"], *container["args"]]


def variables(job: PodJob) -> dict[str, Any]:
    [container] = pod(job)["containers"]
    return {variable["name"]: variable for variable in container["env"]}


def test_a_result_is_not_tried_again_in_place() -> None:
    """A bandwidth below its bound, say; what goes on where it was is."""
    assert "--max-restarts=3" in command(of("eks-p5", "kubeflow", "train", ()))
    assert "--max-restarts=3" in command(of("eks-p5", "kubeflow", "predict", ()))
    assert "--max-restarts=0" in command(of("eks-p5", "kubeflow", "bandwidth", ()))
    assert made(stage="bandwidth", max_retries=7).max_retries == 7


@pytest.mark.parametrize("operator", ["hyperpod", "kubeflow"])
def test_pods_of_a_training_publish_its_metrics(operator: str) -> None:
    def ports(stage: str) -> dict[str, int]:
        [container] = pod(of("eks-p5", operator, stage, ()))["containers"]
        return {port["name"]: port["containerPort"] for port in container.get("ports", [])}

    job = of("eks-p5", operator, "train", ())
    assert ports("train")["metrics"] == int(variables(job)["ESM2_METRICS_PORT"]["value"]) == 9500
    assert variables(job)["ESM2_JOB_ID"]["value"] == job.name
    assert "metrics" not in ports("evaluate")


def test_pods_of_kubeflow_meet_by_c10d() -> None:
    """With etcd they never came back (kubeflow/trainer#1638); without either they wait for NCCL."""
    job = of("eks-p5", "kubeflow", "train", ())
    words = command(job)
    assert "--rdzv-backend=c10d" in words and "--rdzv-endpoint=$(PET_RDZV_ENDPOINT)" in words
    assert "--local-addr=$(POD_IP)" in words and "--nnodes=6" in words
    assert variables(job)["POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert variables(job)["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]["value"] == "1"
    assert "--standalone" in command(of("eks", "kubeflow", "evaluate", ()))


def elastic(operator: str) -> PodJob:
    return made(cluster=shipped("eks-p5", training_operator=operator), team=TEAM, nodes="4-6")


def test_hyperpods_operator_may_change_the_number_of_pods() -> None:
    """It begins with the fewest, and stops the processes before each change; the agent wants one number."""
    job = elastic("hyperpod")
    manifest = job_manifest(job)
    check(manifest)
    [pods] = manifest["spec"]["replicaSpecs"]
    policy = manifest["spec"]["elasticPolicy"]
    assert (pods["replicas"], pods["maxReplicas"]) == (4, 6) == (policy["minReplicas"], policy["maxReplicas"])
    assert policy["replicaIncrementStep"] == 1
    # Time to save, as at any other stop.
    assert policy["gracefulShutdownTimeoutInSeconds"] == 120
    assert "--nnodes=4" in command(job) and variables(job)["NNODES"]["value"] == "4"
    assert "elasticPolicy" not in job_manifest(of("eks-p5", "hyperpod", "train", ()))["spec"]


def test_torchrun_goes_on_with_fewer_pods_on_kubeflow() -> None:
    job = elastic("kubeflow")
    manifest = job_manifest(job)
    check(manifest)
    policy = manifest["spec"]["elasticPolicy"]
    assert (policy["minReplicas"], policy["maxReplicas"], policy["rdzvBackend"]) == (4, 6, "c10d")
    replicas = manifest["spec"]["pytorchReplicaSpecs"]
    assert {role: replica["replicas"] for role, replica in replicas.items()} == {"Worker": 6}
    assert "--nnodes=4:6" in command(job)


@pytest.mark.parametrize("operator", ["hyperpod", "kubeflow"])
def test_the_node_is_checked_before_anything_runs_there(operator: str) -> None:
    job = of("eks-p5", operator, "train", ())
    first, *_ = pod(job)["initContainers"]
    assert first["name"] == "check"
    assert {f"--folder={job.work_folder}", "--gpus=8", "--efa=32"} <= set(first["args"])
    # It is given the devices that it looks at, and then the main container is.
    assert first["resources"] == pod(job)["containers"][0]["resources"]
    assert variables(job)["NODE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert first["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert "utility" in variables(job)["NVIDIA_DRIVER_CAPABILITIES"]["value"]
    assert "NVIDIA_DRIVER_CAPABILITIES" not in variables(of("eks-p5", operator, "data", ()))


def test_devices_are_those_of_the_type() -> None:
    limits = pod(made(cluster=P5, team=TEAM))["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8" and limits["vpc.amazonaws.com/efa"] == "32"
    half = made(cluster=P5, team=TEAM, gpus_per_node=4)
    assert (half.num_gpus, half.num_efa, half.num_processes) == (4, 16, 4)
    assert half.num_cpus < 192 / 2 and half.memory_gib < 2048 / 2


@pytest.mark.parametrize(
    "instance_type", ["ml.g5.2xlarge", "ml.g6.4xlarge", "ml.p5.48xlarge", "ml.g5.8xlarge"]
)
def test_efa_is_asked_for_where_it_is(instance_type: str) -> None:
    cluster = with_group(shipped(), "workers", instance_type=instance_type)
    job = made(cluster=cluster)
    limits = pod(job)["containers"][0]["resources"]["limits"]
    names = {variable["name"] for variable in pod(job)["containers"][0]["env"]}
    has_efa = instance_type in ("ml.p5.48xlarge", "ml.g5.8xlarge")
    assert ("vpc.amazonaws.com/efa" in limits) == has_efa == ("FI_PROVIDER" in names)
    assert job_efa_alone(cluster) == 0


def job_efa_alone(cluster: Any) -> int:
    """One node talks to nobody."""
    return made(cluster=cluster, nodes="1").num_efa


def test_data_take_no_gpu() -> None:
    job = made(stage="data")
    assert (job.num_pods, job.num_gpus, job.num_cpus) == (1, 0, 8)
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
    for labels in (manifest["metadata"]["labels"], pod_templates(manifest)[0]["metadata"]["labels"]):
        assert labels["kueue.x-k8s.io/queue-name"] == "hyperpod-ns-proteins-localqueue"
        assert labels["kueue.x-k8s.io/priority-class"] == "urgent-priority"
    assert "kueue.x-k8s.io/queue-name" not in job_manifest(made())["metadata"]["labels"]
    assert "annotations" not in pod_templates(manifest)[0]["metadata"]


@pytest.mark.parametrize("wish", ["preferred", "required"])
def test_nodes_near_each_other_are_annotations_of_job_and_pods(wish: str) -> None:
    manifest = job_manifest(made(cluster=P5, team=TEAM, **{f"{wish}_topology": NEAR}))
    check(manifest)
    for metadata in (manifest["metadata"], pod_templates(manifest)[0]["metadata"]):
        found = {name: value for name, value in metadata["annotations"].items() if "topology" in name}
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
            "NODES: got 1-2; only training goes on with another number of nodes",
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
        ([], {"stage": "bandwidth", "nodes": "1"}, "NODES: got 1, with one process; an all-reduce needs two"),
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
        ([], {"cluster": P5}, "--team: name one of proteins, structure"),
        ([], {"cluster": P5, "team": "x"}, "--team: got x; the cluster file has proteins, structure"),
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
        (["data.source=[mine.fasta]"], {}, "data: mine.fasta is on this machine; pods read below /fsx"),
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
def test_what_does_not_fit_is_told(overrides: list[str], wanted: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError) as raised:
        made(*overrides, **wanted)
    assert problem in str(raised.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"^3 problem\(s\)"):
        made("runs=/root/runs", image=None, nodes="9")
