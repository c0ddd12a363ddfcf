"""Labels that the dashboards choose by, which the two schedulers' metrics name alike or not."""

from typing import Literal

from monitoring.dashboards.model import AnyQuery, Query, Variable

Scheduler = Literal["slurm", "eks"]

NODE = Variable("node", "Node", "node_memory_MemTotal_bytes", "instance")
GPU_NODE = Variable("node", "Node", "DCGM_FI_DEV_GPU_TEMP", "Hostname")
RUN = Variable("run", "Run", "esm2_training_step", "run")
JOB = Variable("job", "Job", 'esm2_training_step{run=~"$run"}', "job_id")
OF_NODE = 'instance=~"$node"'
OF_GPU_NODE = 'Hostname=~"$node"'
OF_RUN = 'run=~"$run", job_id=~"$job"'


def gpus_of_job(metric: str, scheduler: Scheduler) -> str:
    """A metric of the GPUs that a job has, selected by the dashboard's jobs.

    On Slurm HyperPod's prolog tells dcgm-exporter the job of each GPU. On Kubernetes it knows the pods, whose
    names begin with the job's, and HyperPod's add-on leaves that label: its own dashboards choose by it.
    """
    if scheduler == "slurm":
        return f'{metric}{{hpc_job=~"$job", hpc_job!=""}}'
    return f'{metric}{{pod=~"($job)-.+"}}'


def average_and_lowest(chosen: str) -> tuple[AnyQuery, ...]:
    """A metric of GPUs: its mean on each node, and the GPU that is behind all others."""
    return (
        Query(f"avg by (Hostname) ({chosen})", "{{Hostname}}"),
        Query(f"min({chosen})", "lowest GPU"),
    )
