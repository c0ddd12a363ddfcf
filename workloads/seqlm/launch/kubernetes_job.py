"""Manifests of a stage as a Kubernetes job, with the same pods for HyperPod's operator and for Kubeflow's.

Each node has one pod, and each GPU one process. The operators differ in how processes start and restart:

* HyperPod's operator uses its agent in each pod, which also reads the logs of the processes (``runPolicy``).
* A PyTorchJob of Kubeflow uses torchrun, with HyperPod's auto-resume (annotations).
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
"""Time for which a job remains after its end, with the logs of its pods."""
CLEAN_POD_POLICY = "Running"
"""Pods to remove after the end of a job. Those that run or wait still hold GPUs."""
RESTARTS_IN_PLACE = 3
"""Restarts of the processes before the pods restart, for stages that resume. In other stages, a failure is
the result, such as a bandwidth below its bound."""
RESTART_WINDOW_SECONDS = 6 * 3600
"""Time in which HyperPod's operator counts restarts."""
RESIZE_SECONDS = 300
"""Time before a job continues without a lost pod, which may return on a spare node once that has pulled the
image. Also the time before a job uses more nodes. Each change costs a save and a start."""
JOIN_SECONDS = 3600
"""Longest wait of torchrun for all pods. HyperPod replaces a node in 20 to 30 minutes."""
FIRST_POD_SECONDS = 900
"""Longest wait of torchrun for the first pod to listen, while its node may still pull the image."""


def config_map(job: PodJob) -> Manifest:
    """Return the ConfigMap with the run file, which the pods mount."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job.config_name, "namespace": job.namespace, "labels": job.labels()},
        "immutable": True,
        "data": {CONFIG_FILE: job.files.config},
    }


def job_manifest(job: PodJob) -> Manifest:
    """Return the job for the operator of its cluster."""
    return _hyperpod_job(job) if job.operator == "hyperpod" else _kubeflow_job(job)


def _hyperpod_job(job: PodJob) -> Manifest:
    template = pod_template(job, _agent_command(job), "train", agent=True)
    pods = {"name": "pods", "replicas": job.min_pods, "template": template}
    elastic = {}
    if job.is_elastic:
        pods["maxReplicas"] = job.num_pods
        # Before each change, the agent sends SIGUSR1 and gives the processes this time to save.
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
                    {}
                    if STAGES[job.stage].one_process
                    else {"logMonitoringConfiguration": [_hang_rule(job)]}
                ),
            },
        },
    }


def _hang_rule(job: PodJob) -> Manifest:
    """Return the rule by which HyperPod's agent detects a hang.

    The agent matches the lines of a pod's first process from their beginning.
    """
    start_seconds = COMPILING_SECONDS if job.resources.num_neuron_devices else int(SLOW_SECONDS)
    return {
        "name": "advances",
        "logPattern": rf".*{LINE}",
        "expectedStartCutOffInSeconds": start_seconds,
        "expectedRecurringFrequencyInSeconds": job.hang_seconds,
    }


def _kubeflow_job(job: PodJob) -> Manifest:
    template = pod_template(job, _torchrun_command(job), "pytorch", agent=False)
    replicas = {"Master": 1}
    elastic = {}
    if job.num_pods > 1:
        # Also for a fixed size. With a master, workers would wait for its name in a container of Docker
        # Hub's alpine, which closed networks do not reach.
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
                # The operator counts the restarts of all pods' containers together, and one fault may restart
                # each of them (kubeflow/training-operator, pkg/core/job.go, PastBackoffLimit).
                "backoffLimit": job.max_retries * job.num_pods,
                "cleanPodPolicy": CLEAN_POD_POLICY,
                "ttlSecondsAfterFinished": KEPT_SECONDS,
            },
        },
    }


def _metadata(job: PodJob, annotations: Mapping[str, str]) -> Manifest:
    """Return the metadata of the job.

    Args:
        job: settings of the job.
        annotations: annotations of the operator.
    """
    own = {RUN_DIR_ANNOTATION: job.files.run_dir, VERSION_ANNOTATION: job.version}
    return {
        "name": job.name,
        "namespace": job.namespace,
        "labels": job.labels() | job.placement.queue_labels(),
        "annotations": {**own, **job.placement.topology_annotations(), **annotations},
    }


def _restarts_in_place(job: PodJob) -> int:
    """Return the number of restarts of the processes before the pods restart."""
    return RESTARTS_IN_PLACE if STAGES[job.stage].resumes else 0


def _stage(job: PodJob) -> list[str]:
    """Return the module of the stage with its arguments."""
    return ["-m", *program_of(job.stage), *run_arguments(job)]


def _agent_command(job: PodJob) -> list[str]:
    """Return the command of HyperPod's agent, which is process 1 of the pod and so receives its signals.

    The agent waits until the operator sends it rank and master. It accepts only one number of nodes: an
    elastic job gives the smallest one, and at each start the operator sends the actual number.
    """
    return [
        "python3",
        "-m",
        "seqlm.launch.hyperpod_agent",
        f"--nnodes={job.min_pods}",
        f"--nproc-per-node={job.num_processes}",
        "--shutdown-signal=SIGTERM",
        f"--shutdown-timeout={SHUTDOWN_TIMEOUT_SECONDS}",
        f"--server-port={AGENT_PORT}",
        # Output goes to files, which the agent reads, and to the pod's log.
        "--tee=3",
        f"--log-dir={TEMPORARY_FOLDER}/logs",
        *_stage(job),
    ]


def _torchrun_command(job: PodJob) -> list[str]:
    """Return the command of torchrun. Kubernetes fills in the address of the first pod, from the operator.

    With c10d, a process that fails in one pod makes the processes of all pods restart at once, rather than
    when NCCL stops waiting. A pod that replaces another one joins them.
    """
    num_nodes = f"{job.min_pods}:{job.num_pods}" if job.is_elastic else str(job.num_pods)
    rendezvous = ["--standalone"]
    if job.num_pods > 1:
        rendezvous = [
            "--rdzv-backend=c10d",
            f"--rdzv-id={job.name}",
            "--rdzv-endpoint=$(PET_RDZV_ENDPOINT)",
            f"--rdzv-conf=join_timeout={JOIN_SECONDS},read_timeout={FIRST_POD_SECONDS}",
            # Other pods cannot resolve a pod's name.
            f"--local-addr=$({POD_IP})",
        ]
    command = [
        "python3",
        "-m",
        "seqlm.launch.pod_torchrun",
        f"--nnodes={num_nodes}",
        f"--nproc-per-node={job.num_processes}",
        *rendezvous,
        f"--max-restarts={_restarts_in_place(job)}",
    ]
    # The older torch of other frameworks' images has no such option, and gives processes 30 s to save.
    has_older_torch = job.resources.num_neuron_devices > 0 or bool(STAGES[job.stage].framework)
    if not has_older_torch:
        command.append(f"--shutdown-timeout={SHUTDOWN_TIMEOUT_SECONDS}")
    return [*command, *_stage(job)]
