"""Check a node before the job trains, and print a line of JSON: ``python3 -m seqlm.launch.node_check JOB``.

Run by the node's own Python with the standard library only. It takes seconds, and also works if the run's own
environment is broken.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from seqlm.training.data.open_files import open_files_problem

from . import neuron
from .job_file import Job, read_job

SECONDS = 60
"""Time limit of each program; nvidia-smi may hang on a broken GPU."""
_PACKAGES = ("torch", "transformers", "numpy")
"""Packages that must be installed, in the same version on all nodes."""
_PRINT_VERSIONS = f"""
import json, platform
from importlib.metadata import PackageNotFoundError, version
found = {{"python": platform.python_version()}}
for name in {_PACKAGES!r}:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = "missing"
print(json.dumps(found))
"""


def check(
    job: Job, folder: Path, node: str, sys_class: Path = Path("/sys/class")
) -> dict[str, object]:
    """Return the faults of this node, and the versions that must be the same on all nodes.

    Args:
        job: description of the job.
        folder: folder of the job on the shared file system.
        node: name of this node.
        sys_class: folder of the classes of devices.
    """
    problems = folder_problems(folder, node)
    versions: dict[str, str] = {}
    if job.gpus_per_node:
        num_gpus = int(os.environ.get("SLURM_GPUS_ON_NODE", "0"))
        problems += gpu_problems(num_gpus, "Slurm", versions)
    if job.neuron_devices:
        problems += neuron.device_problems(job.neuron_devices, "Slurm", versions)
    if job.efa and not list((sys_class / "infiniband").glob("*")):
        problems.append(
            "no EFA device, but its instance type has EFA: is the driver loaded? fi_info -p efa"
        )
    num_nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    too_few_files = open_files_problem(num_nodes * job.processes_per_node)
    if too_few_files is not None:
        problems.append(too_few_files)
    if not job.image:
        problems += _python_problems(job.python, versions)
    return {"node": node, "problems": problems, "versions": versions}


def folder_problems(folder: Path, node: str) -> list[str]:
    """Return the fault of a shared folder if the node cannot write to it."""
    probe = folder / f".probe-{node}"
    try:
        probe.write_text(node)
        if probe.read_text() != node:
            return [f"{folder} does not give back what was written to it"]
        probe.unlink()
    except OSError as error:
        return [f"{folder} cannot be written to: {error.strerror}; df -h {folder}"]
    return []


def gpu_problems(given: int, giver: str, versions: dict[str, str]) -> list[str]:
    """Return the faults of the GPUs of a node.

    Args:
        given: number of GPUs of the job on this node.
        giver: name of the scheduler, for messages.
        versions: versions that must be the same on all nodes. The driver's is added.
    """
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"nvidia-smi does not answer: {error}"]
    found = done.stdout.splitlines()
    if done.returncode:
        return [
            f"nvidia-smi fails with {done.returncode}: {done.stdout.strip()} {done.stderr.strip()}".rstrip()
        ]
    versions["driver"] = ", ".join(sorted(set(found)))
    # It shows the GPUs that the job may use, which are all of the node if Slurm hides none.
    if len(found) < given:
        return [f"{giver} gives the job {given} GPUs there, nvidia-smi shows {len(found)}"]
    return []


def _python_problems(python: str, versions: dict[str, str]) -> list[str]:
    """Return the faults of the run's Python, and add the versions of its packages to ``versions``."""
    try:
        done = subprocess.run(
            [python, "-c", _PRINT_VERSIONS], capture_output=True, text=True, timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"{python} does not run: {error}"]
    if done.returncode:
        return [f"{python} does not run: {done.stderr.strip()}"]
    versions.update(json.loads(done.stdout))
    absent = [name for name in _PACKAGES if versions[name] == "missing"]
    if absent:
        return [f"{python} has no {', '.join(absent)}: install requirements.txt there"]
    return []


def main() -> None:
    path = Path(sys.argv[1])
    answer = check(read_job(path), path.parent, os.environ["SLURMD_NODENAME"])
    # In one write, so that the lines of several nodes do not mix.
    os.write(1, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main()
