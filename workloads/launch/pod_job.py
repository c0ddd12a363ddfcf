"""Settings of a Kubernetes job, and the labels by which it is found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .job_file import SHUTDOWN_TIMEOUT_SECONDS

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
