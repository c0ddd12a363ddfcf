"""Description of a Slurm job: ``job.json``, in the folder of the submission.

Standard library only, because the node's own Python reads it, too.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SHUTDOWN_TIMEOUT_SECONDS = 120
"""Time from SIGTERM to SIGKILL, in which processes complete their step and save. torchrun's default is 30."""
JOB_FILE = "job.json"
CONFIG_FILE = "config.yaml"


@dataclass(frozen=True)
class Job:
    """Stage of a run on the nodes of a Slurm cluster. ``job.json`` has these fields."""

    stage: str
    """Name in ``STAGES``. ``data`` runs in one process, the others in one process per GPU."""
    code: str
    """Folder that contains ``workloads/``, and in it the package ``seqlm``."""
    version: str
    """Version of the code: a commit, or the hash of its contents."""
    work_folder: str
    """Base of relative paths in the run file."""
    overrides: tuple[str, ...]
    """Settings that replace those of the run file, as ``section.field=value``."""
    run_dir: str
    """Folder of the run."""
    data_manifest: str
    """File that exists if the run's data are prepared; empty if no data are needed."""
    python: str
    """Python of the run's environment, on the nodes or in the image."""
    image: str | None
    """Squashfs file or image reference for pyxis. None runs ``python`` of the node."""
    mounts: tuple[str, ...]
    """Mount paths of the shared file systems, which containers mount, too."""
    gpus_per_node: int
    """NVIDIA GPUs per node."""
    processes_per_node: int
    """Processes of the stage per node."""
    efa: bool
    """Whether the nodes' instance type has EFA."""
    neuron_devices: int = 0
    """Neuron devices per node: all of them, or 0 for nodes without Trainium."""
    min_nodes: int = 1
    """Smallest number of nodes that the job runs on."""
    max_crashes: int = 3
    """Number of crashes without progress after which the job ends."""
    hang_seconds: int = 300
    """Seconds without progress after which a process counts as hung. torch's own limit with NCCL is 600, and
    leaves no stacks."""
    output: str = ""
    """Path of the table that a stage of inference writes; empty for other stages."""
    needed: tuple[str, ...] = ()
    """Files and folders that must exist when the job is submitted."""

    def write(self, folder: Path) -> Path:
        """Write the job file into a folder, and return its path."""
        path = folder / JOB_FILE
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")
        return path


def read_job(path: Path) -> Job:
    """Read a job file.

    Raises:
        ValueError: if the file is of another version of the code.
    """
    try:
        return job_of(json.loads(path.read_text()))
    except TypeError as error:
        raise ValueError(
            f"{path} is of another version of the code ({error}); submit again"
        ) from None


def job_of(values: Mapping[str, Any]) -> Job:
    """Convert a job from JSON's types, which have lists for tuples."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return Job(**fields)
