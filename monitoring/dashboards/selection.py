"""Choices of the dashboards, and selectors for the labels of both schedulers' metrics."""

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
    """Return a metric of the GPUs of the chosen jobs.

    On Slurm, HyperPod's prolog reports the job of each GPU to dcgm-exporter. On Kubernetes, dcgm-exporter
    adds the pod as a label, and the name of a pod begins with that of its job. HyperPod's add-on keeps this
    label, because its own dashboards use it.
    """
    if scheduler == "slurm":
        return f'{metric}{{hpc_job=~"$job", hpc_job!=""}}'
    return f'{metric}{{pod=~"($job)-.+"}}'


def average_and_lowest(chosen: str) -> tuple[AnyQuery, ...]:
    """Return queries for a metric of GPUs: its mean on each node, and its lowest value of all GPUs."""
    return (
        Query(f"avg by (Hostname) ({chosen})", "{{Hostname}}"),
        Query(f"min({chosen})", "lowest GPU"),
    )
