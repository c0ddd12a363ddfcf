"""The srun commands of a job: what runs on its nodes, in a container or not, and with which environment."""

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
EFA_VARIABLES = {"FI_PROVIDER": "efa", "NCCL_NET_PLUGIN": "ofi", "NCCL_SOCKET_IFNAME": "^docker,lo,veth"}
"""For NCCL's processes on nodes with EFA."""
NODE_VARIABLES = Path("/etc/node-setup/training_environment.json")
"""Variables that node setup provides for jobs: addresses of the cluster's MLflow and its credentials."""
LOCK_SECONDS = 300
"""Wait for the lock of the run's folder after its last start died with its node. Lustre releases a lost
client's locks after 9/4 of its ``timeout`` of 100 s (ping evictor: 6 + 3 pings, each a quarter of it)."""


def srun_help() -> str:
    """With the options that plugins add: pyxis's, and HyperPod's own."""
    return subprocess.run(["srun", "--help"], capture_output=True, text=True, check=True, timeout=60).stdout


def step_command(
    job: Job,
    help_text: str,
    *,
    num_nodes: int,
    arguments: Sequence[str],
    checked: Sequence[str] = (),
) -> list[str]:
    """A task on each of the first nodes that runs a module of the code; any that fails ends the whole step.

    A torchrun that dies leaves its workers behind. They are in the step, which Slurm ends with all of its
    processes.

    Args:
        job: says in which environment.
        help_text: srun's own help.
        num_nodes: how many nodes.
        arguments: of Python.
        checked: the nodes of a check, where each task goes to its end, and HyperPod has nothing to resume.
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
        environment["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # a line tells what fails, not torch's own stacks
    # By env, since variables of an image win over those of the job.
    variables = [f"{name}={value}" for name, value in sorted(environment.items())]
    return [*srun(num_nodes), *options, "env", *variables, job.python, "-u", *arguments]


def srun(num_nodes: int) -> list[str]:
    """One task a node, which may use all that the job has there."""
    return [
        *("srun", f"--nodes={num_nodes}", f"--ntasks={num_nodes}", "--ntasks-per-node=1"),
        *("--mpi=none", "--cpu-bind=none", "--overlap"),
    ]


def stage_arguments(job: Job, folder: Path) -> list[str]:
    results = [] if STAGES[job.stage].reads_run_file else ["--to", job.run_dir]
    return ["--config", str(folder / CONFIG_FILE), *results, *job.overrides]


def run_environment(job: Job) -> dict[str, str]:
    """Nothing of a network that the nodes do not have: NCCL chooses well by itself without EFA."""
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
        # Its home is not kept. Downloads of one job serve the next, and the folder may have a token.
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
        # An image has its own in the loader's cache; on a node they are beside it.
        folders = [*libraries, os.environ.get("LD_LIBRARY_PATH", "")]
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    return variables
