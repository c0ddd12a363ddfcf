"""Kubernetes manifests of a job: its pods, and their fate after success or failure."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from seqlm.launch.kubernetes_job import config_map, job_manifest
from seqlm.launch.pod_job import PodJob
from tests.job_schemas.validation import check, pod_templates
from tests.tools.jobs.kubernetes.eks_jobs_made import IMAGE, made, pod, shipped

TEAM = "proteins"
RETRIES = {"train": 10, "data": 3, "evaluate": 3, "predict": 10, "bandwidth": 1}
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


@cache
def of(name: str, operator: str, stage: str, overrides: tuple[str, ...]) -> PodJob:
    team = TEAM if name == "eks-p5" else None
    cluster = shipped(name, training_operator=operator)
    return made(*overrides, stage=stage, cluster=cluster, team=team)


@pytest.mark.parametrize(("name", "operator", "stage", "overrides"), CASES)
def test_manifests_are_as_the_schemas_want_them(
    name: str, operator: str, stage: str, overrides: tuple[str, ...]
) -> None:
    job = of(name, operator, stage, overrides)
    check(job_manifest(job))
    check(config_map(job))


@pytest.mark.parametrize(("name", "operator", "stage", "overrides"), CASES)
def test_what_pods_mount_is_there(
    name: str, operator: str, stage: str, overrides: tuple[str, ...]
) -> None:
    job = of(name, operator, stage, overrides)
    spec = pod(job)
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for container in [*spec["initContainers"], *spec["containers"]]:
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) == set(volumes)
        # The check makes the working folder.
        assert mounts["shared"] == "/fsx"
        assert container["workingDir"] == (
            "/" if container["name"] == "check" else job.files.work_folder
        )
    assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == "fsx"
    assert volumes["run"]["configMap"]["name"] == config_map(job)["metadata"]["name"]
    assert job.files.work_folder == f"/fsx/{job.namespace}/esm2"


@pytest.mark.parametrize(("name", "operator", "stage", "overrides"), CASES)
def test_processes_may_nothing_that_training_does_not_need(
    name: str, operator: str, stage: str, overrides: tuple[str, ...]
) -> None:
    spec = pod(of(name, operator, stage, overrides))
    assert spec["automountServiceAccountToken"] is False
    security = spec["securityContext"]
    assert (
        security["runAsNonRoot"] is True
        and security["runAsUser"] == security["runAsGroup"] == 10001
    )
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
def test_every_job_is_resumed(
    name: str, operator: str, stage: str, overrides: tuple[str, ...]
) -> None:
    """Return the retries that each operator reads: Kubeflow's annotations, or HyperPod's run policy."""
    manifest = job_manifest(of(name, operator, stage, overrides))
    assert manifest["metadata"]["namespace"].startswith("hyperpod")
    spec = pod_templates(manifest)[0]["spec"]
    assert spec["nodeSelector"]["sagemaker.amazonaws.com/node-health-status"] == "Schedulable"
    assert spec["terminationGracePeriodSeconds"] == 180
    policy = manifest["spec"]["runPolicy"]
    # A job that is over keeps no GPU.
    assert policy["cleanPodPolicy"] == "Running"
    if operator == "kubeflow":
        pods = sum(
            replica["replicas"] for replica in manifest["spec"]["pytorchReplicaSpecs"].values()
        )
        # Restarts of all pods count, and a fault may start each of them again.
        assert policy["backoffLimit"] == RETRIES[stage] * pods
        annotations = manifest["metadata"]["annotations"]
        assert annotations["sagemaker.amazonaws.com/enable-job-auto-resume"] == "true"
        assert annotations["sagemaker.amazonaws.com/job-max-retry-count"] == str(RETRIES[stage])
        replicas = manifest["spec"]["pytorchReplicaSpecs"]
        assert {replica["restartPolicy"] for replica in replicas.values()} == {"OnFailure"}
        assert all(
            replica["template"]["spec"]["containers"][0]["name"] == "pytorch"
            for replica in replicas.values()
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
    """Stages that cannot resume, such as a bandwidth test, are not retried; others are."""
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
    assert (
        (pods["replicas"], pods["maxReplicas"])
        == (4, 6)
        == (policy["minReplicas"], policy["maxReplicas"])
    )
    assert policy["replicaIncrementStep"] == 1
    # Time to save, as at any other stop.
    assert policy["gracefulShutdownTimeoutInSeconds"] == 120
    assert "--nnodes=4" in command(job) and variables(job)["NNODES"]["value"] == "4"
    assert "elasticPolicy" not in job_manifest(of("eks-p5", "hyperpod", "train", ()))["spec"]


def test_torchrun_continues_with_fewer_pods_on_kubeflow() -> None:
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
    assert {f"--folder={job.files.work_folder}", "--gpus=8", "--efa=32"} <= set(first["args"])
    # It is given the devices that it looks at, and then the main container is.
    assert first["resources"] == pod(job)["containers"][0]["resources"]
    assert variables(job)["NODE_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert first["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert "utility" in variables(job)["NVIDIA_DRIVER_CAPABILITIES"]["value"]
    assert "NVIDIA_DRIVER_CAPABILITIES" not in variables(of("eks-p5", operator, "data", ()))
