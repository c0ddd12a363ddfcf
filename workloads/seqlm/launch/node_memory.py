"""Memory of a node for the states of a job's run, and restarts in place from them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from seqlm.runs.stages import STAGES
from seqlm.training.command_line import USAGE_ERROR
from seqlm.training.memory.job_folder import (
    MEMORY_FOLDER,
    held,
    newest_step,
    path_of,
    remove,
    remove_leftovers,
)

from .torchrun import Ending


class NodeMemory:
    """Folder of a job in the memory of this node.

    Args:
        folder: the folder.
        node: name of the node.
        message: file with the error message of the node's processes.
    """

    def __init__(self, folder: Path, node: str, message: Path) -> None:
        self._folder = folder
        self._node = node
        self._message = message
        self._last_step = newest_step(folder)
        """Step of the newest state at the last start."""

    def may_restart(self, ending: Ending) -> bool:
        """Return whether the processes start again in place: after a crash with a state since the last start.

        Without progress, the supervisor checks the nodes and counts crashes.
        """
        if ending.status == USAGE_ERROR or newest_step(self._folder) <= self._last_step:
            return False
        text = self._message.read_text().strip() if self._message.exists() else ""
        self._message.unlink(missing_ok=True)
        reason = f"status {ending.status} {text}".strip()
        print(
            f"{self._node}, process {ending.rank}: {reason}; the processes start again in place, because a "
            f"state of step {newest_step(self._folder)} is in memory",
            flush=True,
        )
        return True

    def restarted(self) -> None:
        """Note that the processes start again, also after a crash on another node."""
        self._last_step = newest_step(self._folder)

    def end(self, ending: Ending) -> None:
        """Delete the folder unless the next start may read it.

        Processes that have saved after a signal have deleted their states.
        """
        if ending.status in (0, USAGE_ERROR) or newest_step(self._folder) == 0:
            remove(self._folder)


@contextlib.contextmanager
def node_memory(stage: str, node: str, message: Path) -> Iterator[NodeMemory | None]:
    """Hold the folder of this job during the block; None if the stage keeps no states.

    Args:
        stage: name of the stage or check.
        node: name of this node.
        message: file with the error message of the node's processes.
    """
    if stage not in STAGES or STAGES[stage].trained_by != "seqlm":
        yield None
        return
    remove_leftovers()
    folder = path_of(os.environ["SLURM_JOB_ID"])
    with held(folder):
        os.environ[MEMORY_FOLDER] = str(folder)
        yield NodeMemory(folder, node, message)
