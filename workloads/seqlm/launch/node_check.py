"""Whether a node is fit for the job, before it trains: one line of JSON, from a task on each node.

``python3 -m seqlm.launch.node_check JOB``, by the node's own Python: within seconds, and also where
the run's own environment is broken.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from . import neuron
from .job_file import Job, read_job

SECONDS = 60
"""Bound of each program; nvidia-smi may hang on a broken GPU."""
_PACKAGES = ("torch", "transformers", "numpy")
_ASK_VERSIONS = f"""
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


def check(job: Job, folder: Path, node: str, sys_class: Path = Path("/sys/class")) -> dict[str, object]:
    """Return the faults of this node, and the versions that must be the same on all nodes."""
    problems: list[str] = []
    versions: dict[str, str] = {}
    problems += folder_problems(folder, node)
    if job.gpus_per_node:
        problems += gpu_problems(int(os.environ.get("SLURM_GPUS_ON_NODE", "0")), "Slurm", versions)
    problems += neuron.device_problems(job.neuron_devices, "Slurm", versions) if job.neuron_devices else []
    if job.efa and not list((sys_class / "infiniband").glob("*")):
        problems.append("no EFA device, but its instance type has EFA: is the driver loaded? fi_info -p efa")
    if not job.image:
        problems += _python(job.python, versions)
    return {"node": node, "problems": problems, "versions": versions}


def folder_problems(folder: Path, node: str) -> list[str]:
    """Whether the node can write to a shared folder."""
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
    """Whether the GPUs that a job was given are there and answer; notes the driver's version."""
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
    # It shows all that the job may reach: those given, or all of the node where Slurm hides none.
    if len(found) < given:
        return [f"{giver} gives the job {given} GPUs there, nvidia-smi shows {len(found)}"]
    return []


def _python(python: str, versions: dict[str, str]) -> list[str]:
    try:
        done = subprocess.run([python, "-c", _ASK_VERSIONS], capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"{python} does not run: {error}"]
    if done.returncode:
        return [f"{python} does not run: {done.stderr.strip()}"]
    versions.update(json.loads(done.stdout))
    absent = [name for name in _PACKAGES if versions[name] == "missing"]
    return [f"{python} has no {', '.join(absent)}: install requirements.txt there"] if absent else []


def main() -> None:
    path = Path(sys.argv[1])
    answer = check(read_job(path), path.parent, os.environ["SLURMD_NODENAME"])
    # In one write, so that the lines of several nodes do not mix.
    os.write(1, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main()
