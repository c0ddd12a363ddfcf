"""Commands of srun for the steps of a job, with the container and the environment of their processes."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from seqlm.runs.stages import STAGES
from seqlm.training.tracking.metrics_port import JOB_ID, PORT, slurm_port

from . import neuron
from .job_file import CONFIG_FILE, Job

_AMAZON = "/opt/amazon"
EFA_VARIABLES = {
    "FI_PROVIDER": "efa",
    "NCCL_NET_PLUGIN": "ofi",
    "NCCL_SOCKET_IFNAME": "^docker,lo,veth",
}
"""Environment of NCCL on nodes with EFA."""
NODE_VARIABLES = Path("/etc/node-setup/training_environment.json")
"""File of node setup with variables for jobs: the address of the cluster's MLflow, and its credentials."""
LOCK_SECONDS = 300
"""Longest wait for the lock of the run's folder, after the last start died with its node. Lustre releases the
locks of a lost client after 9/4 of its ``timeout`` of 100 s (ping evictor: 6 + 3 pings, each a quarter of
it)."""


def srun_help() -> str:
    """Return the help text of srun. It lists the options of plugins, such as pyxis and HyperPod's own."""
    return subprocess.run(
        ["srun", "--help"], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def step_command(
    job: Job,
    help_text: str,
    *,
    num_nodes: int,
    arguments: Sequence[str],
    checked: Sequence[str] = (),
) -> list[str]:
    """Return the command of a step that runs a module of the code once on each node.

    If a task fails, Slurm ends the whole step with all of its processes. This also ends the workers of a
    torchrun that died.

    Args:
        job: description of the job.
        help_text: help text of srun.
        num_nodes: number of nodes; they are the first ones of the job.
        arguments: arguments of Python.
        checked: nodes of a check. Then every task runs to its end, and HyperPod does not resume the step.
    """
    options = ["--kill-on-bad-exit=1"]
    if checked:
        options = ["--kill-on-bad-exit=0", f"--nodelist={','.join(checked)}"]
    elif "--auto-resume" in help_text:
        options.append("--auto-resume=1")
    if job.image:
        mounts = ",".join(f"{mount}:{mount}" for mount in job.mounts)
        options += [f"--container-image={job.image}", f"--container-mounts={mounts}"]
        options += ["--no-container-mount-home", f"--container-workdir={job.work_folder}"]
    environment = run_environment(job)
    if checked:
        # The check reports a failure in one line, without torch's stacks.
        environment["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    # Set by the program env, because variables of an image override those of the job.
    variables = [f"{name}={value}" for name, value in sorted(environment.items())]
    return [*srun(num_nodes), *options, "env", *variables, job.python, "-u", *arguments]


def srun(num_nodes: int) -> list[str]:
    """Return the start of a srun command: one task per node, which may use all resources of the job."""
    return [
        "srun",
        f"--nodes={num_nodes}",
        f"--ntasks={num_nodes}",
        "--ntasks-per-node=1",
        "--mpi=none",
        "--cpu-bind=none",
        "--overlap",
    ]


def stage_arguments(job: Job, folder: Path) -> list[str]:
    """Return the arguments of the stage's program."""
    results = [] if STAGES[job.stage].reads_run_file else ["--to", job.run_dir]
    return ["--config", str(folder / CONFIG_FILE), *results, *job.overrides]


def run_environment(job: Job) -> dict[str, str]:
    """Return the environment of a step.

    It has EFA variables only on nodes with EFA; otherwise NCCL chooses the network.
    """
    job_id = os.environ["SLURM_JOB_ID"]
    variables = {
        "PYTHONPATH": f"{job.code}/workloads",
        "PYTHONDONTWRITEBYTECODE": "1",
        "ESM2_LOCK_SECONDS": str(LOCK_SECONDS),
        "GIT_SHA": job.version,
        JOB_ID: job_id,
        PORT: str(slurm_port(int(job_id))),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if job.image:
        # The container's home folder is not kept. Here, later jobs find the downloads, and a token if any.
        variables["HF_HOME"] = f"{job.work_folder}/huggingface"
    if NODE_VARIABLES.is_file():
        variables |= json.loads(NODE_VARIABLES.read_text())
    libraries: tuple[str, ...] = ()
    if job.neuron_devices:
        variables |= neuron.environment(efa=job.efa)
        libraries = neuron.LIBRARIES
    elif job.efa:
        variables |= EFA_VARIABLES
        libraries = (f"{_AMAZON}/efa/lib", f"{_AMAZON}/ofi-nccl/lib")
    if libraries and not job.image:
        # An image has these libraries in the loader's cache, a node does not.
        folders = [*libraries, os.environ.get("LD_LIBRARY_PATH", "")]
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    return variables
