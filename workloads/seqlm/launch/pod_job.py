"""Settings of a Kubernetes job, its labels, and its pods, which are the same for both operators."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from seqlm.runs.stages import STAGES
from seqlm.training.data.locks import PATIENCE
from seqlm.training.heartbeat import BEAT_LINES
from seqlm.training.memory.job_folder import MANAGED_JOB
from seqlm.training.tracking.metrics_port import JOB_ID, POD_PORT, PORT

from . import neuron
from .job_file import SHUTDOWN_TIMEOUT_SECONDS
from .pod_check import NODE_NAME
from .pod_memory import NODE_MEMORY, ROOT
from .slurm_step import EFA_VARIABLES, LOCK_SECONDS

Operator = Literal["hyperpod", "kubeflow"]
Manifest = dict[str, Any]

JOB_LABEL = "esm2/job"
STAGE_LABEL = "esm2/stage"
RUN_LABEL = "esm2/run"
RUN_DIR_ANNOTATION = "esm2/run-dir"
VERSION_ANNOTATION = "esm2/version"
HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"
DEEP_HEALTH_LABEL = "sagemaker.amazonaws.com/deep-health-check-status"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
GROUP_LABEL = "sagemaker.amazonaws.com/instance-group-name"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
PREFERRED_TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
SAVE_SECONDS = SHUTDOWN_TIMEOUT_SECONDS + 60
"""Time from SIGTERM to SIGKILL for a pod: its processes save, and then those that do not end are killed."""
CONFIG_FOLDER = "/etc/esm2"
CONFIG_FILE = "config.yaml"
AGENT_FOLDER = "/opt/ml/input/config"
"""Folder in which HyperPod's agent keeps the members of the job (``hyperpod_rendezvous_backend.py`` of its
1.1.3)."""
AGENT_PORT = 8080
TEMPORARY_FOLDER = "/tmp"
JOB_ENVIRONMENT = "training-environment"
"""ConfigMap of the cluster with settings for jobs (config/resource_names.py)."""
MAX_SHARED_GIB = 64
"""Largest size of a pod's shared memory."""
LINES_A_HANG = 5
"""Number of lines that a process logs within ``hang_seconds``."""
POD_IP = "POD_IP"
"""Environment variable with the address of the pod."""
METRICS_PORT_NAME = "metrics"


@dataclass(frozen=True, kw_only=True)
class PodResources:
    """Resources of each pod."""

    num_cpus: int
    memory_gib: int
    num_gpus: int
    """NVIDIA GPUs, or slices of ``gpu_slice``."""
    gpu_slice: str | None = None
    """Profile of the slices of a GPU (NVIDIA MIG), for example 1g.10gb; None for whole GPUs."""
    num_efa: int = 0
    """EFA interfaces."""
    num_neuron_devices: int = 0
    """Neuron devices: all of a node, or none."""

    @property
    def gpus_text(self) -> str:
        """Return the GPUs of a pod for people."""
        if self.gpu_slice:
            return f"{self.num_gpus} slice(s) {self.gpu_slice} of a GPU"
        return f"{self.num_gpus} GPU(s)"

    def sizes(self) -> dict[str, str]:
        """Return CPUs and memory as Kubernetes has them."""
        return {"cpu": str(self.num_cpus), "memory": f"{self.memory_gib}Gi"}

    def sizes_with_devices(self) -> dict[str, str]:
        """Return all resources as Kubernetes has them."""
        gpu = f"nvidia.com/mig-{self.gpu_slice}" if self.gpu_slice else "nvidia.com/gpu"
        devices = {
            gpu: self.num_gpus,
            neuron.DEVICE_RESOURCE: self.num_neuron_devices,
            "vpc.amazonaws.com/efa": self.num_efa,
        }
        return self.sizes() | {name: str(count) for name, count in devices.items() if count}


@dataclass(frozen=True, kw_only=True)
class PodPlacement:
    """Nodes that pods may run on, and the queue in which they wait."""

    node_labels: Mapping[str, str]
    """Labels of these nodes."""
    tolerations: tuple[Mapping[str, str], ...]
    """Tolerations of the taints of these nodes."""
    preferred_groups: Mapping[str, int] = field(default_factory=dict)
    """Preference for nodes of instance groups, from 1 to 100, by name."""
    queue: str | None = None
    """Queue of Kueue, by which pods count against a quota; None without a quota."""
    priority: str | None = None
    """Priority class of Kueue."""
    preferred_topology: str | None = None
    """Label of nodes. Kueue prefers nodes with the same value, and takes others if there are none."""
    required_topology: str | None = None
    """Label of nodes. Kueue waits for nodes with the same value."""

    def queue_labels(self) -> dict[str, str]:
        """Return Kueue's labels of a job or Deployment and of its pods."""
        return _given({QUEUE_LABEL: self.queue, PRIORITY_LABEL: self.priority})

    def affinity(self) -> dict[str, Any]:
        """Return the preference for groups as a pod has it; empty without one."""
        preferences = [
            {
                "weight": weight,
                "preference": {
                    "matchExpressions": [{"key": GROUP_LABEL, "operator": "In", "values": [name]}]
                },
            }
            for name, weight in self.preferred_groups.items()
        ]
        if not preferences:
            return {}
        return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferences}}

    def topology_annotations(self) -> dict[str, str]:
        """Return Kueue's annotations of a job and of its pods."""
        return _given(
            {PREFERRED_TOPOLOGY: self.preferred_topology, REQUIRED_TOPOLOGY: self.required_topology}
        )


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Run file of a job, and paths on the shared file system."""

    config: str
    """Text of the run file."""
    overrides: tuple[str, ...]
    """Settings that replace those of the run file, as ``section.field=value``."""
    mount: str
    """Mount path of the file system, in pods and on nodes."""
    work_folder: str
    """Base of relative paths in the run file."""
    run_dir: str
    """Folder of the run."""
    output: str
    """Path of the table that a stage of inference writes; empty for other stages."""


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Settings of the pods of jobs and of services."""

    name: str
    """DNS label; for a job at most 40 characters, because operators append to it."""
    namespace: str
    image: str
    """Reference by digest."""
    version: str
    """Version of the code that submits or renders; the image's version is in its ``GIT_SHA``."""
    resources: PodResources
    placement: PodPlacement
    claim: str
    """PersistentVolumeClaim of the shared file system."""
    user: int
    """Id of the user and group of the processes."""


@dataclass(frozen=True, kw_only=True)
class PodJob(PodSettings):
    """Job with one pod per node, and one process per GPU or NeuronCore."""

    operator: Operator
    """Training operator of the cluster."""
    stage: str
    """Name in ``STAGES``."""
    run: str
    """Name of the run as a DNS label."""
    num_pods: int
    """Largest number of pods."""
    min_pods: int
    """Smallest number of pods to run with; ``num_pods`` for a job of a fixed size."""
    files: RunFiles
    processes_per_device: int = 1
    """Processes per GPU or Neuron device."""
    memory_claim: str | None = None
    """PersistentVolumeClaim of the folder in the memory of each node, for the newest states of a training."""
    has_managed_memory: bool = False
    """Whether a training keeps its newest states in HyperPod's managed tier."""
    service_account: str | None = None
    """Service account of the pods."""
    hang_seconds: int = 300
    """Seconds without progress after which a process counts as hung."""
    max_retries: int = 10
    """Number of restarts by the operator."""

    @property
    def num_processes(self) -> int:
        """Return the processes of each pod."""
        num_devices = self.resources.num_gpus or self.resources.num_neuron_devices
        return max(1, num_devices * self.processes_per_device)

    @property
    def is_elastic(self) -> bool:
        """Return whether the job continues when its number of pods changes."""
        return self.min_pods < self.num_pods

    @property
    def config_name(self) -> str:
        """Name of the ConfigMap with the run file."""
        return f"{self.name}-run"

    def labels(self) -> dict[str, str]:
        """Return the labels by which the job, its pods and its run file are found."""
        return {
            "app.kubernetes.io/name": "esm2",
            JOB_LABEL: self.name,
            STAGE_LABEL: self.stage,
            RUN_LABEL: self.run,
        }


def _given(values: Mapping[str, str | None]) -> dict[str, str]:
    """Return the values that are set."""
    return {name: value for name, value in values.items() if value}


def pod_template(job: PodJob, command: list[str], container_name: str, *, agent: bool) -> Manifest:
    """Return the template of the job's pods.

    Args:
        job: settings of the job.
        command: command of the main container.
        container_name: name of the main container, by which operators find it.
        agent: whether the command is HyperPod's agent, which the operator connects to.
    """
    volumes, mounts = _volumes(job, agent=agent)
    if job.memory_claim:
        command = ["python3", "-m", "seqlm.launch.pod_memory", job.name, *command]
    main = _container(
        job, mounts, name=container_name, command=command, sizes=job.resources.sizes_with_devices()
    )
    ports = _ports(job, agent=agent)
    if ports:
        main["ports"] = ports
    annotations = job.placement.topology_annotations()
    return {
        "metadata": {
            "labels": job.labels() | job.placement.queue_labels(),
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            **pod_base(job, SAVE_SECONDS),
            **({"serviceAccountName": job.service_account} if job.service_account else {}),
            "initContainers": _init_containers(job, mounts),
            "containers": [main],
            "volumes": volumes,
        },
    }


def _container(
    job: PodJob,
    mounts: list[Manifest],
    *,
    name: str,
    command: list[str],
    sizes: Mapping[str, str],
    folder: str | None = None,
) -> Manifest:
    """Return a container of the job's pods.

    Args:
        job: settings of the job.
        mounts: mounts of the volumes.
        name: name of the container.
        command: program and arguments.
        sizes: resources of the container.
        folder: working folder; by default that of the run.
    """
    # Kubernetes fills in these values.
    fields = {NODE_NAME: "spec.nodeName", POD_IP: "status.podIP"}
    variables: list[Manifest] = [
        {"name": key, "value": value} for key, value in environment(job).items()
    ]
    variables += [
        {"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for key, path in fields.items()
    ]
    return {
        "name": name,
        "command": command[:3],
        "args": command[3:],
        "workingDir": folder or job.files.work_folder,
        **container_base(job),
        "env": variables,
        # Optional settings of the cluster, such as MLflow's address.
        "envFrom": [{"configMapRef": {"name": JOB_ENVIRONMENT, "optional": True}}],
        "volumeMounts": mounts,
        # make status shows a container's last message, also after the pod has left its node.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # Limits equal requests, so that a pod keeps its resources, and the kernel kills no other pod to get
        # memory for it.
        "resources": {"requests": dict(sizes), "limits": dict(sizes)},
    }


def _ports(job: PodJob, *, agent: bool) -> list[Manifest]:
    """Return the ports of the main container. Prometheus finds the pod by the port's name."""
    ports = {}
    if agent:
        ports["agent"] = AGENT_PORT
    if STAGES[job.stage].has_metrics:
        ports[METRICS_PORT_NAME] = POD_PORT
    return [{"name": name, "containerPort": port} for name, port in ports.items()]


def _init_containers(job: PodJob, mounts: list[Manifest]) -> list[Manifest]:
    """Return the containers that check the node and prepare the data before the main container starts."""
    resources = job.resources
    # The check gets the same devices as the main container. It creates the working folder, because
    # Kubernetes would create it as root.
    check = [
        "python3",
        "-m",
        "seqlm.launch.pod_check",
        f"--folder={job.files.work_folder}",
        f"--gpus={resources.num_gpus}",
        f"--neuron={resources.num_neuron_devices}",
        f"--efa={resources.num_efa}",
    ]
    sizes = resources.sizes_with_devices()
    containers = [_container(job, mounts, name="check", command=check, sizes=sizes, folder="/")]
    stage = STAGES[job.stage]
    if stage.trains:
        prepare = ["python3", "-m", *stage.pod_data_program, *run_arguments(job)]
        containers.append(
            _container(job, mounts, name="data", command=prepare, sizes=resources.sizes())
        )
    return containers


def container_base(pods: PodSettings) -> Manifest:
    """Return the fields that containers of jobs and of services have in common."""
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
    """Return the fields that pods of jobs and of services have in common. They run on healthy nodes."""
    affinity = pods.placement.affinity()
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
        "nodeSelector": {HEALTH_LABEL: "Schedulable", **pods.placement.node_labels},
        **({"affinity": affinity} if affinity else {}),
        "tolerations": [dict(toleration) for toleration in pods.placement.tolerations],
    }


def run_arguments(job: PodJob) -> list[str]:
    """Return the arguments of every module that reads the run file."""
    results = [] if STAGES[job.stage].reads_run_file else ["--to", job.files.run_dir]
    return ["--config", f"{CONFIG_FOLDER}/{CONFIG_FILE}", *results, *job.files.overrides]


def environment(job: PodJob) -> dict[str, str]:
    """Return the environment of the processes. Without EFA, NCCL selects the network itself."""
    resources = job.resources
    variables = {
        # The root file system is read-only.
        "HOME": TEMPORARY_FOLDER,
        "HF_HOME": f"{job.files.work_folder}/huggingface",
        # The output of the processes reaches the pod's log at once.
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(max(1, resources.num_cpus // job.num_processes)),
        "TOKENIZERS_PARALLELISM": "false",
        PATIENCE: str(LOCK_SECONDS),
        BEAT_LINES: str(max(1, job.hang_seconds // LINES_A_HANG)),
    }
    if STAGES[job.stage].has_metrics:
        variables |= {JOB_ID: job.name, PORT: str(POD_PORT)}
    if job.memory_claim:
        variables |= {ROOT: NODE_MEMORY}
    if job.has_managed_memory:
        variables |= {MANAGED_JOB: job.name}
    if resources.num_gpus:
        # The container gets nvidia-smi, which the check runs, only with the capability `utility`.
        variables |= {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    if job.operator == "hyperpod":
        variables |= {"NNODES": str(job.min_pods)}
    elif job.num_pods > 1:
        # torchrun of torch 2.13 keeps the address of the processes' store from the first round. It is wrong
        # when a pod with another address is the first one in a later round.
        variables |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    if resources.num_neuron_devices:
        variables |= neuron.environment(efa=resources.num_efa > 0)
    elif resources.num_efa:
        variables |= EFA_VARIABLES
    if resources.num_efa:
        # The pod requests no huge pages, so libfabric must not use them.
        variables |= {"FI_EFA_USE_HUGE_PAGE": "0"}
    return variables


def _volumes(job: PodJob, *, agent: bool) -> tuple[list[Manifest], list[Manifest]]:
    """Return the volumes and their mounts."""
    shared_gib = min(MAX_SHARED_GIB, max(1, job.resources.memory_gib // 4))
    found: list[tuple[str, str, dict[str, Any]]] = [
        ("shared", job.files.mount, {"persistentVolumeClaim": {"claimName": job.claim}}),
        ("run", CONFIG_FOLDER, {"configMap": {"name": job.config_name}}),
        ("temporary", TEMPORARY_FOLDER, {"emptyDir": {}}),
        # In the container's memory. NCCL's processes on a node communicate through it.
        (
            "shared-memory",
            "/dev/shm",
            {"emptyDir": {"medium": "Memory", "sizeLimit": f"{shared_gib}Gi"}},
        ),
    ]
    if job.memory_claim:
        of_node = {"persistentVolumeClaim": {"claimName": job.memory_claim}}
        found.append(("node-memory", NODE_MEMORY, of_node))
    if agent:
        found.append(("agent", AGENT_FOLDER, {"emptyDir": {}}))
    volumes = [{"name": name, **source} for name, _, source in found]
    mounts = [
        {"name": name, "mountPath": path, **({"readOnly": True} if name == "run" else {})}
        for name, path, _ in found
    ]
    return volumes, mounts
