"""A stage as a job of Kubernetes: plain objects, the same pods for HyperPod's operator and for Kubeflow's.

One pod a node, a process a GPU. What differs is who starts the pods' processes, and starts them again:
HyperPod's operator by its agent in each pod, which also reads their logs (``runPolicy``), or torchrun, with
HyperPod's auto-resume for Kubeflow's PyTorchJob (annotations).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..beat_lines import LINE, SLOW_SECONDS
from ..heartbeat import BEAT_LINES
from ..run_lock import PATIENCE
from .slurm_step import LOCK_SECONDS
from .torchrun import SHUTDOWN_TIMEOUT_SECONDS

Operator = Literal["hyperpod", "kubeflow"]
Manifest = dict[str, Any]

MODULES = {
    "data": "workloads.esm2.data",
    "train": "workloads.esm2.train",
    "evaluate": "workloads.esm2.evaluate",
    "bandwidth": "workloads.esm2.network.bandwidth",
}
CONFIG_FOLDER, CONFIG_FILE = "/etc/esm2", "config.yaml"
AGENT_FOLDER = "/opt/ml/input/config"
"""HyperPod's agent keeps there who is in the job (``hyperpod_rendezvous_backend.py`` of its 1.1.3)."""
AGENT_PORT = 8080
TEMPORARY_FOLDER = "/tmp"
JOB_LABEL, STAGE_LABEL, RUN_LABEL = "esm2/job", "esm2/stage", "esm2/run"
RUN_DIR_ANNOTATION, VERSION_ANNOTATION = "esm2/run-dir", "esm2/version"
HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"
DEEP_HEALTH_LABEL = "sagemaker.amazonaws.com/deep-health-check-status"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
GROUP_LABEL = "sagemaker.amazonaws.com/instance-group-name"
QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
AUTO_RESUME = "sagemaker.amazonaws.com/enable-job-auto-resume"
MAX_RETRIES = "sagemaker.amazonaws.com/job-max-retry-count"
KEPT_SECONDS = 7 * 24 * 3600
"""A job that has ended stays that long, with its pods and their logs."""
MAX_SHARED_GIB = 64
RESTART_WINDOW_SECONDS = 6 * 3600
SAVE_SECONDS = SHUTDOWN_TIMEOUT_SECONDS + 60
"""Between SIGTERM and SIGKILL for a pod: its processes save, and then those that do not end are killed."""
LINES_A_HANG = 5
"""Lines that a process writes in the time after whose silence it counts as hung."""


@dataclass(frozen=True)
class PodJob:
    """What a job takes and is told."""

    name: str
    """DNS label, 40 characters at most: operators append to it."""
    namespace: str
    operator: Operator
    stage: str
    run: str
    """DNS label."""
    image: str
    """By digest."""
    version: str
    """Of the code that submits; the image's own is in its ``GIT_SHA``."""
    num_pods: int
    num_gpus: int
    """Of each pod."""
    num_efa: int
    """EFA interfaces of each pod."""
    num_cpus: int
    memory_gib: int
    node_labels: Mapping[str, str]
    """Of nodes that it may run on."""
    tolerations: tuple[Mapping[str, str], ...]
    claim: str
    mount: str
    """Where the file system is, in pods as on nodes."""
    work_folder: str
    """What relative paths of the run file are relative to."""
    run_dir: str
    config: str
    """Text of the run file."""
    overrides: tuple[str, ...]
    user: int
    """Id of the user and group that processes have."""
    queue: str | None = None
    priority: str | None = None
    service_account: str | None = None
    hang_seconds: int = 300
    max_retries: int = 10

    @property
    def num_processes(self) -> int:
        """Of each pod."""
        return max(1, self.num_gpus)

    @property
    def config_name(self) -> str:
        return f"{self.name}-run"


def config_map(job: PodJob) -> Manifest:
    """The run file, which pods mount."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job.config_name, "namespace": job.namespace, "labels": _labels(job)},
        "immutable": True,
        "data": {CONFIG_FILE: job.config},
    }


def job_manifest(job: PodJob) -> Manifest:
    """The job, of the kind that the cluster's operator takes."""
    return _hyperpod_job(job) if job.operator == "hyperpod" else _kubeflow_job(job)


def _hyperpod_job(job: PodJob) -> Manifest:
    template = _pod_template(job, _agent_command(job), "train", agent=True)
    return {
        "apiVersion": "sagemaker.amazonaws.com/v1",
        "kind": "HyperPodPyTorchJob",
        "metadata": _metadata(job, {}),
        "spec": {
            "nprocPerNode": str(job.num_processes),
            "replicaSpecs": [{"name": "pods", "replicas": job.num_pods, "template": template}],
            "runPolicy": {
                "cleanPodPolicy": "None",
                "jobMaxRetryCount": job.max_retries,
                "ttlSecondsAfterFinished": KEPT_SECONDS,
                "restartPolicy": {
                    "evalPeriodSeconds": RESTART_WINDOW_SECONDS,
                    "numRestartBeforeFullJobRestart": 3,
                    "maxFullJobRestarts": job.max_retries,
                },
                **({} if job.stage == "data" else {"logMonitoringConfiguration": [_hang_rule(job)]}),
            },
        },
    }


def _hang_rule(job: PodJob) -> Manifest:
    """For HyperPod's agent, which matches from the beginning of the lines of a pod's first process."""
    return {
        "name": "advances",
        "logPattern": rf".*{LINE}",
        "expectedStartCutOffInSeconds": int(SLOW_SECONDS),
        "expectedRecurringFrequencyInSeconds": job.hang_seconds,
    }


def _kubeflow_job(job: PodJob) -> Manifest:
    template = _pod_template(job, _torchrun_command(job), "pytorch", agent=False)
    replicas = {"Master": 1, **({"Worker": job.num_pods - 1} if job.num_pods > 1 else {})}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(job, {AUTO_RESUME: "true", MAX_RETRIES: str(job.max_retries)}),
        "spec": {
            "nprocPerNode": str(job.num_processes),
            "pytorchReplicaSpecs": {
                role: {"replicas": count, "restartPolicy": "OnFailure", "template": template}
                for role, count in replicas.items()
            },
            "runPolicy": {
                "backoffLimit": job.max_retries,
                "cleanPodPolicy": "None",
                "ttlSecondsAfterFinished": KEPT_SECONDS,
            },
        },
    }


def _metadata(job: PodJob, annotations: Mapping[str, str]) -> Manifest:
    return {
        "name": job.name,
        "namespace": job.namespace,
        "labels": _labels(job) | _queue_labels(job),
        "annotations": {RUN_DIR_ANNOTATION: job.run_dir, VERSION_ANNOTATION: job.version, **annotations},
    }


def _labels(job: PodJob) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "esm2",
        JOB_LABEL: job.name,
        STAGE_LABEL: job.stage,
        RUN_LABEL: job.run,
    }


def _queue_labels(job: PodJob) -> dict[str, str]:
    found = {QUEUE_LABEL: job.queue, PRIORITY_LABEL: job.priority}
    return {name: value for name, value in found.items() if value}


def _pod_template(job: PodJob, command: list[str], container_name: str, *, agent: bool) -> Manifest:
    volumes, mounts = _volumes(job, agent=agent)
    # Limits as requests: what a pod has it keeps, and the kernel kills nobody else for its memory.
    sizes = {"cpu": str(job.num_cpus), "memory": f"{job.memory_gib}Gi"}
    devices = {"nvidia.com/gpu": job.num_gpus, "vpc.amazonaws.com/efa": job.num_efa}
    all_sizes = sizes | {name: str(count) for name, count in devices.items() if count}
    container = {
        "image": job.image,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": name, "value": value} for name, value in environment(job).items()],
        "volumeMounts": mounts,
        "securityContext": container_security(),
    }

    def made(name: str, command: list[str], sizes: Mapping[str, str], folder: str) -> Manifest:
        resources = {"requests": dict(sizes), "limits": dict(sizes)}
        words = {"command": command[:3], "args": command[3:]}
        return {"name": name, **words, "workingDir": folder, **container, "resources": resources}

    main = made(container_name, command, all_sizes, job.work_folder)
    if agent:
        main["ports"] = [{"name": "agent", "containerPort": AGENT_PORT}]
    # A working folder that is not there would be made by root.
    before = [made("folder", ["mkdir", "-p", "--", job.work_folder], sizes, "/")]
    if job.stage == "train":
        prepare = ["python3", "-m", "workloads.esm2.launch.pod_data", *_run_arguments(job)]
        before.append(made("data", prepare, sizes, job.work_folder))
    return {
        "metadata": {"labels": _labels(job) | _queue_labels(job)},
        "spec": {
            "terminationGracePeriodSeconds": SAVE_SECONDS,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            **({"serviceAccountName": job.service_account} if job.service_account else {}),
            "securityContext": pod_security(job.user),
            "nodeSelector": {HEALTH_LABEL: "Schedulable", **job.node_labels},
            "tolerations": [dict(toleration) for toleration in job.tolerations],
            "initContainers": before,
            "containers": [main],
            "volumes": volumes,
        },
    }


def container_security() -> Manifest:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def pod_security(user: int) -> Manifest:
    """For processes of a user and group of that id."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _volumes(job: PodJob, *, agent: bool) -> tuple[list[Manifest], list[Manifest]]:
    """Volumes, and where they are mounted."""
    found: list[tuple[str, str, Manifest]] = [
        ("shared", job.mount, {"persistentVolumeClaim": {"claimName": job.claim}}),
        ("run", CONFIG_FOLDER, {"configMap": {"name": job.config_name}}),
        ("temporary", TEMPORARY_FOLDER, {"emptyDir": {}}),
        # In memory, which counts as the container's: NCCL's processes of a node talk by it.
        (
            "shared-memory",
            "/dev/shm",
            {
                "emptyDir": {
                    "medium": "Memory",
                    "sizeLimit": f"{min(MAX_SHARED_GIB, max(1, job.memory_gib // 4))}Gi",
                }
            },
        ),
    ]
    if agent:
        found.append(("agent", AGENT_FOLDER, {"emptyDir": {}}))
    volumes = [{"name": name, **source} for name, _, source in found]
    mounts = [
        {"name": name, "mountPath": path, **({"readOnly": True} if name == "run" else {})}
        for name, path, _ in found
    ]
    return volumes, mounts


def environment(job: PodJob) -> dict[str, str]:
    """Of the processes. Without EFA nothing of the network is set: NCCL chooses well by itself."""
    variables = {
        # The root file system is read-only.
        "HOME": TEMPORARY_FOLDER,
        "HF_HOME": f"{job.work_folder}/huggingface",
        # What processes write is in the pod's log at once.
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(max(1, job.num_cpus // job.num_processes)),
        "TOKENIZERS_PARALLELISM": "false",
        PATIENCE: str(LOCK_SECONDS),
        BEAT_LINES: str(max(1, job.hang_seconds // LINES_A_HANG)),
    }
    if job.operator == "hyperpod":
        variables |= {"NNODES": str(job.num_pods)}
    if job.num_efa:
        # Huge pages are not requested, so libfabric must not take them.
        variables |= {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0", "NCCL_NET_PLUGIN": "ofi"}
        variables |= {"NCCL_SOCKET_IFNAME": "^docker,lo,veth"}
    return variables


def _run_arguments(job: PodJob) -> list[str]:
    results = ["--to", job.run_dir] if job.stage == "bandwidth" else []
    return ["--config", f"{CONFIG_FOLDER}/{CONFIG_FILE}", *results, *job.overrides]


def _stage(job: PodJob) -> list[str]:
    return ["-m", MODULES[job.stage], *_run_arguments(job)]


def _agent_command(job: PodJob) -> list[str]:
    """The agent waits for the operator, who tells it rank and master; as process 1 it gets the signals."""
    return [
        *("python3", "-m", "workloads.esm2.launch.hyperpod_agent"),
        f"--nnodes={job.num_pods}",
        f"--nproc-per-node={job.num_processes}",
        "--shutdown-signal=SIGTERM",
        f"--shutdown-timeout={SHUTDOWN_TIMEOUT_SECONDS}",
        f"--server-port={AGENT_PORT}",
        # Into files, which the agent reads, and to the pod's log.
        *("--tee=3", f"--log-dir={TEMPORARY_FOLDER}/logs"),
        *_stage(job),
    ]


def _torchrun_command(job: PodJob) -> list[str]:
    """Kubeflow's operator gives each pod its rank and where the first one is; Kubernetes puts them in."""
    meeting = ["--standalone"]
    if job.num_pods > 1:
        meeting = ["--node-rank=$(RANK)", "--master-addr=$(MASTER_ADDR)", "--master-port=$(MASTER_PORT)"]
    return [
        *("python3", "-m", "torch.distributed.run"),
        f"--nnodes={job.num_pods}",
        f"--nproc-per-node={job.num_processes}",
        *meeting,
        f"--shutdown-timeout={SHUTDOWN_TIMEOUT_SECONDS}",
        *_stage(job),
    ]
