"""Settings of a Kubernetes job, its labels, and its pods, which are the same for either operator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from seqlm.runs.stages import STAGES
from seqlm.training.data.locks import PATIENCE
from seqlm.training.heartbeat import BEAT_LINES
from seqlm.training.tracking.metrics_port import JOB_ID, POD_PORT, PORT

from . import neuron
from .job_file import SHUTDOWN_TIMEOUT_SECONDS
from .pod_check import NODE_NAME
from .slurm_step import EFA_VARIABLES, LOCK_SECONDS

Operator = Literal["hyperpod", "kubeflow"]
Manifest = dict[str, Any]

JOB_LABEL, STAGE_LABEL, RUN_LABEL = "esm2/job", "esm2/stage", "esm2/run"
RUN_DIR_ANNOTATION, VERSION_ANNOTATION = "esm2/run-dir", "esm2/version"
HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"
DEEP_HEALTH_LABEL = "sagemaker.amazonaws.com/deep-health-check-status"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
GROUP_LABEL = "sagemaker.amazonaws.com/instance-group-name"
QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
PREFERRED_TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
SAVE_SECONDS = SHUTDOWN_TIMEOUT_SECONDS + 60
"""Time from SIGTERM to SIGKILL for a pod: its processes save, and then those that do not end are killed."""
CONFIG_FOLDER, CONFIG_FILE = "/etc/esm2", "config.yaml"
AGENT_FOLDER = "/opt/ml/input/config"
"""HyperPod's agent keeps there who is in the job (``hyperpod_rendezvous_backend.py`` of its 1.1.3)."""
AGENT_PORT = 8080
TEMPORARY_FOLDER = "/tmp"
JOB_ENVIRONMENT = "training-environment"
"""The cluster's (config/resource_names.py)."""
MAX_SHARED_GIB = 64
LINES_A_HANG = 5
"""Lines that a process writes in the time after whose silence it counts as hung."""
POD_IP = "POD_IP"
METRICS_PORT_NAME = "metrics"


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Settings that the pods of jobs and services share."""

    name: str
    """DNS label; for a job at most 40 characters, because operators append to it."""
    namespace: str
    image: str
    """Reference by digest."""
    version: str
    """Version of the code that submits or renders; the image's version is in its ``GIT_SHA``."""
    num_gpus: int
    """NVIDIA GPUs of each pod."""
    num_cpus: int
    memory_gib: int
    node_labels: Mapping[str, str]
    """Labels of nodes that it may run on."""
    tolerations: tuple[Mapping[str, str], ...]
    claim: str
    user: int
    """Id of the user and group of the processes."""
    queue: str | None = None
    """Kueue's, by which pods count against a quota; None where there is none."""
    priority: str | None = None
    """Kueue's class."""

    def queue_labels(self) -> dict[str, str]:
        """For Kueue, on the job or Deployment and on its pods."""
        return _given({QUEUE_LABEL: self.queue, PRIORITY_LABEL: self.priority})


@dataclass(frozen=True, kw_only=True)
class PodJob(PodSettings):
    """One pod a node, a process a GPU or NeuronCore."""

    operator: Operator
    stage: str
    run: str
    """DNS label."""
    num_pods: int
    """Largest number of pods."""
    min_pods: int
    """Smallest number of pods to run with; ``num_pods`` for a job of a fixed size."""
    num_efa: int
    """EFA interfaces of each pod."""
    mount: str
    """Mount path of the file system, in pods and on nodes."""
    work_folder: str
    """Base of relative paths in the run file."""
    run_dir: str
    output: str
    """Table that a stage of inference writes, else empty."""
    config: str
    """Text of the run file."""
    overrides: tuple[str, ...]
    num_neuron_devices: int = 0
    """Devices of each pod: all of its node, or none."""
    processes_per_device: int = 1
    preferred_topology: str | None = None
    """Label of nodes; Kueue looks for nodes with the same value, and takes others if there are none."""
    required_topology: str | None = None
    """The same, and Kueue waits if there are none."""
    service_account: str | None = None
    hang_seconds: int = 300
    max_retries: int = 10
    """Number of restarts by its operator."""

    @property
    def num_processes(self) -> int:
        """Return the processes of each pod."""
        return max(1, (self.num_gpus or self.num_neuron_devices) * self.processes_per_device)

    @property
    def is_elastic(self) -> bool:
        """Return whether the job continues when its number of pods changes."""
        return self.min_pods < self.num_pods

    @property
    def config_name(self) -> str:
        return f"{self.name}-run"

    def labels(self) -> dict[str, str]:
        """Return the labels by which the job, its pods and its run file are found."""
        return {
            "app.kubernetes.io/name": "esm2",
            JOB_LABEL: self.name,
            STAGE_LABEL: self.stage,
            RUN_LABEL: self.run,
        }

    def topology_annotations(self) -> dict[str, str]:
        """For Kueue, on the job and on its pods."""
        return _given(
            {PREFERRED_TOPOLOGY: self.preferred_topology, REQUIRED_TOPOLOGY: self.required_topology}
        )


def _given(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def pod_template(job: PodJob, command: list[str], container_name: str, *, agent: bool) -> Manifest:
    """One pod of the job.

    Args:
        job: what it takes.
        command: of the main container.
        container_name: of that; operators look for it by its name.
        agent: whether the command is HyperPod's agent, which the operator talks to.
    """
    volumes, mounts = _volumes(job, agent=agent)
    # Limits equal requests, so a pod keeps its resources, and the kernel kills no other pod for its memory.
    sizes = {"cpu": str(job.num_cpus), "memory": f"{job.memory_gib}Gi"}
    devices = {
        "nvidia.com/gpu": job.num_gpus,
        neuron.DEVICE_RESOURCE: job.num_neuron_devices,
        "vpc.amazonaws.com/efa": job.num_efa,
    }
    all_sizes = sizes | {name: str(count) for name, count in devices.items() if count}
    container = {
        **container_base(job),
        "env": [
            *({"name": name, "value": value} for name, value in environment(job).items()),
            # Kubernetes fills these in.
            *(
                {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in ((NODE_NAME, "spec.nodeName"), (POD_IP, "status.podIP"))
            ),
        ],
        # What the cluster has for jobs, as where its MLflow is; there is none where it has nothing.
        "envFrom": [{"configMapRef": {"name": JOB_ENVIRONMENT, "optional": True}}],
        "volumeMounts": mounts,
        # make status shows a container's last message, also after the pod has left its node.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }

    def made(name: str, command: list[str], sizes: Mapping[str, str], folder: str) -> Manifest:
        resources = {"requests": dict(sizes), "limits": dict(sizes)}
        words = {"command": command[:3], "args": command[3:]}
        return {"name": name, **words, "workingDir": folder, **container, "resources": resources}

    main = made(container_name, command, all_sizes, job.work_folder)
    # By the name of its port, those who collect metrics know whom to ask.
    ports = {"agent": AGENT_PORT} if agent else {}
    ports |= {METRICS_PORT_NAME: POD_PORT} if STAGES[job.stage].has_metrics else {}
    if ports:
        main["ports"] = [{"name": name, "containerPort": port} for name, port in ports.items()]
    # It sees the devices that the main container gets, and makes the working folder, which would be root's if
    # Kubernetes made it.
    check = ["python3", "-m", "seqlm.launch.pod_check", f"--folder={job.work_folder}"]
    check += [f"--gpus={job.num_gpus}", f"--neuron={job.num_neuron_devices}", f"--efa={job.num_efa}"]
    before = [made("check", check, all_sizes, "/")]
    if (stage := STAGES[job.stage]).trains:
        prepare = ["python3", "-m", *stage.pod_data_program, *run_arguments(job)]
        before.append(made("data", prepare, sizes, job.work_folder))
    annotations = job.topology_annotations()
    return {
        "metadata": {
            "labels": job.labels() | job.queue_labels(),
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            **pod_base(job, SAVE_SECONDS),
            **({"serviceAccountName": job.service_account} if job.service_account else {}),
            "initContainers": before,
            "containers": [main],
            "volumes": volumes,
        },
    }


def container_base(pods: PodSettings) -> Manifest:
    """Fields that the containers of jobs and services have in common."""
    return {
        "image": pods.image,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }


def pod_base(pods: PodSettings, grace_seconds: int) -> Manifest:
    """Fields that the pods of jobs and services have in common; they run on healthy nodes."""
    return {
        "terminationGracePeriodSeconds": grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": pods.user,
            "runAsGroup": pods.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": {HEALTH_LABEL: "Schedulable", **pods.node_labels},
        "tolerations": [dict(toleration) for toleration in pods.tolerations],
    }


def run_arguments(job: PodJob) -> list[str]:
    """Return the arguments of every module that reads the run file."""
    results = [] if STAGES[job.stage].reads_run_file else ["--to", job.run_dir]
    return ["--config", f"{CONFIG_FOLDER}/{CONFIG_FILE}", *results, *job.overrides]


def environment(job: PodJob) -> dict[str, str]:
    """Return the environment of the processes. Without EFA, NCCL selects the network itself."""
    variables = {
        # The root file system is read-only.
        "HOME": TEMPORARY_FOLDER,
        "HF_HOME": f"{job.work_folder}/huggingface",
        # Output of processes reaches the pod's log at once.
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(max(1, job.num_cpus // job.num_processes)),
        "TOKENIZERS_PARALLELISM": "false",
        PATIENCE: str(LOCK_SECONDS),
        BEAT_LINES: str(max(1, job.hang_seconds // LINES_A_HANG)),
    }
    if STAGES[job.stage].has_metrics:
        variables |= {JOB_ID: job.name, PORT: str(POD_PORT)}
    if job.num_gpus:
        # nvidia-smi, which the check asks, is put in from the node only for those who want utilities.
        variables |= {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    if job.operator == "hyperpod":
        variables |= {"NNODES": str(job.min_pods)}
    elif job.num_pods > 1:
        # torch 2.13's torchrun keeps the first round's address of the processes' store. That one is gone when
        # a pod with another address is the first one in a later round.
        variables |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if job.num_neuron_devices:
        variables |= neuron.environment(efa=job.num_efa > 0)
    elif job.num_efa:
        variables |= EFA_VARIABLES
    if job.num_efa:
        # Huge pages are not requested, so libfabric must not take them.
        variables |= {"FI_EFA_USE_HUGE_PAGE": "0"}
    return variables


def _volumes(job: PodJob, *, agent: bool) -> tuple[list[Manifest], list[Manifest]]:
    """Volumes, and where they are mounted."""
    shared_memory = f"{min(MAX_SHARED_GIB, max(1, job.memory_gib // 4))}Gi"
    found: list[tuple[str, str, dict[str, Any]]] = [
        ("shared", job.mount, {"persistentVolumeClaim": {"claimName": job.claim}}),
        ("run", CONFIG_FOLDER, {"configMap": {"name": job.config_name}}),
        ("temporary", TEMPORARY_FOLDER, {"emptyDir": {}}),
        # In memory, which counts as the container's: NCCL's processes of a node talk by it.
        ("shared-memory", "/dev/shm", {"emptyDir": {"medium": "Memory", "sizeLimit": shared_memory}}),
    ]
    if agent:
        found.append(("agent", AGENT_FOLDER, {"emptyDir": {}}))
    volumes = [{"name": name, **source} for name, _, source in found]
    mounts = [
        {"name": name, "mountPath": path, **({"readOnly": True} if name == "run" else {})}
        for name, path, _ in found
    ]
    return volumes, mounts
