"""The pods of a job, the same for either operator."""

from collections.abc import Mapping
from typing import Any

from workloads.stages import STAGES
from workloads.training.data.locks import PATIENCE
from workloads.training.heartbeat import BEAT_LINES
from workloads.training.tracking.metrics_port import JOB_ID, POD_PORT, PORT

from . import neuron
from .pod_check import NODE_NAME
from .pod_job import HEALTH_LABEL, SAVE_SECONDS, Manifest, PodJob, PodSettings
from .slurm_step import EFA_VARIABLES, LOCK_SECONDS

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
    ports |= {METRICS_PORT_NAME: POD_PORT} if job.stage == "train" else {}
    if ports:
        main["ports"] = [{"name": name, "containerPort": port} for name, port in ports.items()]
    # It sees the devices that the main container gets, and makes the working folder, which would be root's if
    # Kubernetes made it.
    check = ["python3", "-m", "workloads.launch.pod_check", f"--folder={job.work_folder}"]
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
    results = ["--to", job.run_dir] if job.stage == "bandwidth" else []
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
    if job.stage == "train":
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
