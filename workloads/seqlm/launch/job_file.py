"""Description of a Slurm job's run: ``job.json``, in the folder of the submission.

Standard library only, because the node's own Python reads it too.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SHUTDOWN_TIMEOUT_SECONDS = 120
"""Time from SIGTERM to SIGKILL, in which processes end their step and save. torchrun's default is 30."""
JOB_FILE = "job.json"
CONFIG_FILE = "config.yaml"


@dataclass(frozen=True)
class Job:
    stage: str
    """One of ``STAGES``; data is prepared by one process, the others run one a GPU."""
    code: str
    """Folder that contains ``workloads/``, and in it the package ``seqlm``."""
    version: str
    """Version of the code: a commit, or the hash of its contents."""
    work_folder: str
    """Base of relative paths in the run file."""
    overrides: tuple[str, ...]
    run_dir: str
    data_manifest: str
    """File that exists if the run's data are prepared; empty if no data are needed."""
    python: str
    image: str | None
    """Squashfs file or image reference, for pyxis; None runs ``python`` of the node."""
    mounts: tuple[str, ...]
    """Shared file systems, which containers get, too."""
    gpus_per_node: int
    """NVIDIA's."""
    processes_per_node: int
    efa: bool
    """Whether the nodes' instance type has EFA."""
    neuron_devices: int = 0
    """Devices per node, which a job does not share; 0 without Trainium."""
    min_nodes: int = 1
    """Smallest number of nodes that the job runs on."""
    max_crashes: int = 3
    """Crashes without progress in between after which the job ends."""
    hang_seconds: int = 300
    """Seconds without progress after which a process counts as hung. torch's own limit with NCCL is 600, and
    leaves no stacks."""
    output: str = ""
    """Table that a stage of inference writes; empty for other stages."""
    needed: tuple[str, ...] = ()
    """Files and folders that must be there for the job to be submitted."""

    def write(self, folder: Path) -> Path:
        path = folder / JOB_FILE
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")
        return path


def read_job(path: Path) -> Job:
    """Read what ``Job.write`` has written.

    Raises:
        ValueError: if the file is of another version of the code.
    """
    try:
        return job_of(json.loads(path.read_text()))
    except TypeError as error:
        raise ValueError(f"{path} is of another version of the code ({error}); submit again") from None


def job_of(values: Mapping[str, Any]) -> Job:
    """Convert a job from JSON's types."""
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }
    return Job(**plain)
