"""A stage as a job of Kubernetes: plain objects, the same pods for HyperPod's operator and for Kubeflow's.

One pod a node, a process a GPU. What differs is who starts the pods' processes, and starts them again:
HyperPod's operator by its agent in each pod, which also reads their logs (``runPolicy``), or torchrun, with
HyperPod's auto-resume for Kubeflow's PyTorchJob (annotations).
"""

from collections.abc import Mapping

from seqlm.runs.stages import STAGES, program_of
from seqlm.training.heartbeat import LINE, SLOW_SECONDS

from .job_file import SHUTDOWN_TIMEOUT_SECONDS
from .neuron import COMPILING_SECONDS
from .pod_job import (
    AGENT_PORT,
    CONFIG_FILE,
    POD_IP,
    RUN_DIR_ANNOTATION,
    TEMPORARY_FOLDER,
    VERSION_ANNOTATION,
    Manifest,
    PodJob,
    pod_template,
    run_arguments,
)

AUTO_RESUME = "sagemaker.amazonaws.com/enable-job-auto-resume"
MAX_RETRIES = "sagemaker.amazonaws.com/job-max-retry-count"
KEPT_SECONDS = 7 * 24 * 3600
"""Time for which an ended job stays, with the logs of its ended pods."""
CLEAN_POD_POLICY = "Running"
"""Pods to remove after the end of a job: those that still run or wait, so that they free their GPUs."""
RESTARTS_IN_PLACE = 3
"""Restarts of processes in their pods before the pods restart, for stages that resume. A failure of other
stages is their result, such as a bandwidth below its bound."""
RESTART_WINDOW_SECONDS = 6 * 3600
RESIZE_SECONDS = 300
"""Time for a lost pod to return on a spare node, which fetches the image, before a job continues without it.
Also the time between more available nodes and a start with them. Both cost a save and a start."""
"""Stages in BioNeMo's image, which has torch 2.8; torch-neuronx has 2.9."""
JOIN_SECONDS = 3600
"""torchrun's wait for all pods. HyperPod replaces a node in 20 to 30 minutes."""
FIRST_POD_SECONDS = 900
"""torchrun's wait for the first pod to listen, whose node may still fetch the image."""


def config_map(job: PodJob) -> Manifest:
    """The run file, which pods mount."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job.config_name, "namespace": job.namespace, "labels": job.labels()},
        "immutable": True,
        "data": {CONFIG_FILE: job.config},
    }


def job_manifest(job: PodJob) -> Manifest:
    """The job, of the kind that the cluster's operator takes."""
    return _hyperpod_job(job) if job.operator == "hyperpod" else _kubeflow_job(job)


def _hyperpod_job(job: PodJob) -> Manifest:
    template = pod_template(job, _agent_command(job), "train", agent=True)
    pods = {"name": "pods", "replicas": job.min_pods, "template": template}
    elastic = {}
    if job.is_elastic:
        pods["maxReplicas"] = job.num_pods
        # By the agent, SIGUSR1 and this time to save come before each change.
        elastic["elasticPolicy"] = {
            "minReplicas": job.min_pods,
            "maxReplicas": job.num_pods,
            "replicaIncrementStep": 1,
            "gracefulShutdownTimeoutInSeconds": SHUTDOWN_TIMEOUT_SECONDS,
            "scalingTimeoutInSeconds": RESIZE_SECONDS,
            "faultyScaleDownTimeoutInSeconds": RESIZE_SECONDS,
        }
    return {
        "apiVersion": "sagemaker.amazonaws.com/v1",
        "kind": "HyperPodPyTorchJob",
        "metadata": _metadata(job, {}),
        "spec": {
            "nprocPerNode": str(job.num_processes),
            **elastic,
            "replicaSpecs": [pods],
            "runPolicy": {
                "cleanPodPolicy": CLEAN_POD_POLICY,
                "jobMaxRetryCount": job.max_retries,
                "ttlSecondsAfterFinished": KEPT_SECONDS,
                "restartPolicy": {
                    "evalPeriodSeconds": RESTART_WINDOW_SECONDS,
                    "numRestartBeforeFullJobRestart": max(1, _restarts_in_place(job)),
                    "maxFullJobRestarts": job.max_retries,
                },
                **(
                    {} if STAGES[job.stage].one_process else {"logMonitoringConfiguration": [_hang_rule(job)]}
                ),
            },
        },
    }


def _hang_rule(job: PodJob) -> Manifest:
    """For HyperPod's agent, which matches from the beginning of the lines of a pod's first process."""
    return {
        "name": "advances",
        "logPattern": rf".*{LINE}",
        "expectedStartCutOffInSeconds": COMPILING_SECONDS if job.num_neuron_devices else int(SLOW_SECONDS),
        "expectedRecurringFrequencyInSeconds": job.hang_seconds,
    }


def _kubeflow_job(job: PodJob) -> Manifest:
    template = pod_template(job, _torchrun_command(job), "pytorch", agent=False)
    replicas, elastic = {"Master": 1}, {}
    if job.num_pods > 1:
        # Of a fixed size, too: with a master, the operator has workers wait for its name, by a container
        # of Docker Hub's alpine, which closed networks do not reach.
        replicas = {"Worker": job.num_pods}
        elastic["elasticPolicy"] = {
            "rdzvBackend": "c10d",
            "minReplicas": job.min_pods,
            "maxReplicas": job.num_pods,
            "maxRestarts": _restarts_in_place(job),
        }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(job, {AUTO_RESUME: "true", MAX_RETRIES: str(job.max_retries)}),
        "spec": {
            "nprocPerNode": str(job.num_processes),
            **elastic,
            "pytorchReplicaSpecs": {
                role: {"replicas": count, "restartPolicy": "OnFailure", "template": template}
                for role, count in replicas.items()
            },
            "runPolicy": {
                # The operator adds up how often all pods' containers have started again, and one fault may
                # start each of them again (kubeflow/training-operator, pkg/core/job.go, PastBackoffLimit).
                "backoffLimit": job.max_retries * job.num_pods,
                "cleanPodPolicy": CLEAN_POD_POLICY,
                "ttlSecondsAfterFinished": KEPT_SECONDS,
            },
        },
    }


def _metadata(job: PodJob, annotations: Mapping[str, str]) -> Manifest:
    own = {RUN_DIR_ANNOTATION: job.run_dir, VERSION_ANNOTATION: job.version}
    return {
        "name": job.name,
        "namespace": job.namespace,
        "labels": job.labels() | job.queue_labels(),
        "annotations": {**own, **job.topology_annotations(), **annotations},
    }


def _restarts_in_place(job: PodJob) -> int:
    return RESTARTS_IN_PLACE if STAGES[job.stage].resumes else 0


def _stage(job: PodJob) -> list[str]:
    return ["-m", *program_of(job.stage), *run_arguments(job)]


def _agent_command(job: PodJob) -> list[str]:
    """The agent waits for the operator, who tells it rank and master; as process 1 it gets the signals.

    It wants one number of nodes. An elastic job begins with the fewest, and at each start the operator says
    how many there are.
    """
    return [
        *("python3", "-m", "seqlm.launch.hyperpod_agent"),
        f"--nnodes={job.min_pods}",
        f"--nproc-per-node={job.num_processes}",
        "--shutdown-signal=SIGTERM",
        f"--shutdown-timeout={SHUTDOWN_TIMEOUT_SECONDS}",
        f"--server-port={AGENT_PORT}",
        # Into files, which the agent reads, and to the pod's log.
        *("--tee=3", f"--log-dir={TEMPORARY_FOLDER}/logs"),
        *_stage(job),
    ]


def _torchrun_command(job: PodJob) -> list[str]:
    """The operator says where the first pod is; Kubernetes puts that in.

    By c10d, pods know of each other: a process that fails in one of them has those of all others start again
    at once, and not when NCCL gives up waiting. A pod that comes in place of another joins them.
    """
    meeting = ["--standalone"]
    if job.num_pods > 1:
        meeting = [
            *("--rdzv-backend=c10d", f"--rdzv-id={job.name}", "--rdzv-endpoint=$(PET_RDZV_ENDPOINT)"),
            f"--rdzv-conf=join_timeout={JOIN_SECONDS},read_timeout={FIRST_POD_SECONDS}",
            # A pod's name is no address to the others.
            f"--local-addr=$({POD_IP})",
        ]
    return [
        *("python3", "-m", "torch.distributed.run"),
        f"--nnodes={job.min_pods}:{job.num_pods}" if job.is_elastic else f"--nnodes={job.num_pods}",
        f"--nproc-per-node={job.num_processes}",
        *meeting,
        f"--max-restarts={_restarts_in_place(job)}",
        # The older torch of other frameworks' images has no such option, and gives processes 30 s to save.
        *(
            []
            if job.num_neuron_devices or STAGES[job.stage].framework
            else [f"--shutdown-timeout={SHUTDOWN_TIMEOUT_SECONDS}"]
        ),
        *_stage(job),
    ]
