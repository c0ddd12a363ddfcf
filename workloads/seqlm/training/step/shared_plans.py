"""Plans of blocks that the processes of a node make in turns.

A step of thousands of packs has many blocks. If each process planned all of them, planning would take longer
than the step itself. Here each process plans every Nth block, and reads the plans of the others from files in
memory. A plan that does not appear in time is made by the process that needs it, so the files only save time:
the packs are the same with and without them.
"""

import os
import re
import secrets
import shutil
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..packing import BLOCK_UNITS, PackStream, PlannedBlock
from ..processes import Processes

MIN_BLOCKS = 2
"""Blocks of a step from which on they are shared. Below, a process plans them in a few milliseconds."""
PATIENCE_SECONDS = 0.1
"""Longest wait for the plan of another process. It is halved after each vain one."""
POLL_SECONDS = 0.001
"""Seconds between the first two looks for a plan. Each further pause is twice as long."""
MAX_POLL_SECONDS = 0.01
"""Longest pause between two looks."""
KEPT_PLANS = 64
"""Number of plans of a process that stay for the others, which may be some steps behind. One has 40 KB."""
IN_MEMORY = Path("/dev/shm")
"""Folder whose files are in memory, on Linux."""
PREFIX = "seqlm-plans-"
"""First part of the name of a folder with plans. The launcher's number and a random word follow."""

_NAME = re.compile(rf"{PREFIX}(?P<launcher>[0-9]{{1,9}})-[0-9a-f]+")


def node_plans(stream: PackStream, packs_per_step: int, here: Processes) -> "NodePlans | None":
    """Return the plans that the processes of a node share; None if a step has few blocks.

    None also if files in memory cannot be written. Every process calls this.

    Args:
        stream: packs of the split.
        packs_per_step: number of packs of a step, of all processes together.
        here: this process.
    """
    if here.world_size == 1 or _blocks_per_step(stream, packs_per_step) < MIN_BLOCKS:
        return None
    # The word keeps out the plans of an earlier start.
    [word] = here.gather({secrets.token_hex(8): None} if here.is_first else {})
    size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if size == 1:
        return None
    parent = folder_in_memory()
    rank = int(os.environ["LOCAL_RANK"])
    if rank == 0:
        _remove_abandoned(parent)
    try:
        return NodePlans(parent / f"{PREFIX}{os.getppid()}-{word}", rank, size)
    except OSError:
        return None  # each process then plans all blocks


def folder_in_memory() -> Path:
    """Return a folder whose files are in memory, or else the one for temporary files."""
    return IN_MEMORY if IN_MEMORY.is_dir() else Path(tempfile.gettempdir())


def _blocks_per_step(stream: PackStream, packs_per_step: int) -> float:
    """Return the number of blocks of a step, from the mean length of the records."""
    split = stream.split
    shape = stream.shape
    mean_tokens = min(shape.max_record_tokens, split.num_tokens / split.num_records)
    records_per_pack = shape.num_tokens / (mean_tokens + shape.special_tokens)
    return packs_per_step * records_per_pack / BLOCK_UNITS


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of starts that were killed."""
    for folder in parent.glob(f"{PREFIX}*"):
        named = _NAME.fullmatch(folder.name)
        if named is None:
            continue
        try:
            os.kill(int(named["launcher"]), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except PermissionError:  # another user's launcher
            continue


class NodePlans:
    """Plans of blocks, each made by one process of the node.

    Args:
        folder: folder of this start and node. It is created, and removed with this object.
        rank: number of this process on its node.
        size: number of processes of the node.

    Raises:
        OSError: if the folder belongs to another user.
    """

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self._folder = folder
        self._rank = rank
        self._size = size
        self._own: dict[tuple[int, int], PlannedBlock] = {}
        """Plans of this process by epoch and number of the block, the oldest first."""
        self._patience = [PATIENCE_SECONDS] * size
        """Longest wait for a plan of each process."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def planned(
        self, stream: PackStream, epoch: int, blocks: Sequence[int], index: int
    ) -> PlannedBlock:
        """Return the plan of a block, equal to ``stream.plan(epoch, blocks[index])``."""
        owner = index % self._size
        # This process's next block comes first, because the others wait for it.
        own_index = index + (self._rank - owner) % self._size
        if own_index < len(blocks) and (epoch, own_index) not in self._own:
            self._publish(epoch, own_index, stream.plan(epoch, blocks[own_index]))
        if owner == self._rank:
            return self._own[epoch, index]
        content = self._waited_for(self._path(epoch, index), owner)
        if content is None:
            return stream.plan(epoch, blocks[index])
        return _unpacked(content, epoch, blocks[index] * BLOCK_UNITS)

    def _path(self, epoch: int, index: int) -> Path:
        return self._folder / f"{epoch}-{index}"

    def _publish(self, epoch: int, index: int, block: PlannedBlock) -> None:
        """Keep a plan, and write it for the other processes; drop the oldest one."""
        self._own[epoch, index] = block
        path = self._path(epoch, index)
        partial = path.with_name(f".{path.name}")
        try:
            partial.write_bytes(_packed(block))
            partial.replace(path)
        except OSError:
            # The memory is full. The others plan this block themselves.
            partial.unlink(missing_ok=True)
        if len(self._own) > KEPT_PLANS:
            oldest = next(iter(self._own))
            del self._own[oldest]
            self._path(*oldest).unlink(missing_ok=True)

    def _waited_for(self, path: Path, owner: int) -> bytes | None:
        """Return the plan of another process; None if it does not appear in time."""
        deadline = time.monotonic() + self._patience[owner]
        pause = POLL_SECONDS
        while True:
            try:
                content = path.read_bytes()
            except OSError:
                content = None
            if content is not None:
                self._patience[owner] = PATIENCE_SECONDS
                return content
            if time.monotonic() >= deadline:
                self._patience[owner] /= 2
                return None
            time.sleep(pause)
            pause = min(2 * pause, MAX_POLL_SECONDS)


def _packed(block: PlannedBlock) -> bytes:
    """Return a plan as bytes: the number of packs, three lists of bounds, and the members."""
    bounds = [block.bounds, block.token_bounds, block.pair_bounds]
    numbers = np.concatenate([[len(block)], *bounds]).astype(np.int64)
    return numbers.tobytes() + block.members.tobytes()


def _unpacked(content: bytes, epoch: int, first_unit: int) -> PlannedBlock:
    """Return the plan that ``_packed`` has made bytes of.

    Args:
        content: bytes.
        epoch: epoch of the plan.
        first_unit: first unit of its block.
    """
    [num_packs] = np.frombuffer(content, np.int64, 1).tolist()
    num_bounds = 3 * (num_packs + 1)
    bounds = np.frombuffer(content, np.int64, num_bounds, offset=8).reshape(3, -1)
    members = np.frombuffer(content, np.uint16, offset=8 * (1 + num_bounds))
    return PlannedBlock(epoch, first_unit, members, *bounds)
