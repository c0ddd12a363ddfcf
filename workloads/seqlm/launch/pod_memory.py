"""Hold a job's folder in the memory of a pod's node, and run the pod's command in its place:
``python -m seqlm.launch.pod_memory JOB COMMAND [ARGUMENT...]``.

The folder outlives the pod, so that the job continues from it in a new pod on the node. The lock belongs to
the process, which becomes the command, so that the DaemonSet ``node-memory`` deletes the folder only after
that has ended. Without a folder the command runs nevertheless. Standard library only.
"""

import fcntl
import os
import sys
from pathlib import Path

from seqlm.training.memory.job_folder import (
    LOCK_FILE,
    MEMORY_FOLDER,
    MEMORY_PROBLEM,
    create_private,
)

NODE_MEMORY = "/node-memory"
"""Mount path of the namespace's folder in the memory of the node."""
ROOT = "ESM2_NODE_MEMORY"
"""Environment variable with this path."""
MAX_PODS = 64
"""Most pods of a job on one node."""


def take_folder(root: Path, job: str) -> Path:
    """Create or find the first folder of a job that no other pod holds, and hold it until this process ends.

    Pods of a job on one node have a folder each. Which one does not matter, because processes find their
    pieces in any of them.

    Args:
        root: folder of the namespace.
        job: name of the job.

    Raises:
        OSError: if the folder cannot be written.
        ValueError: if the folder belongs to somebody else, or other pods hold all of them.
    """
    for number in range(MAX_PODS):
        folder = root / f"{job}.{number}"
        create_private(folder)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        os.set_inheritable(lock, True)
        return folder
    raise ValueError(f"{root}: {MAX_PODS} pods of job {job} run on this node")


def main() -> None:
    """Run the command with the folder, or with the reason why it lacks one."""
    job, *command = sys.argv[1:]
    try:
        os.environ[MEMORY_FOLDER] = str(take_folder(Path(os.environ[ROOT]), job))
    except (OSError, ValueError) as error:
        os.environ[MEMORY_PROBLEM] = str(error)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
