"""Choice of the memory in which a run keeps its newest states."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqlm.training.config import RunConfig
from seqlm.training.processes import Processes

from .interval import Interval
from .job_folder import MANAGED_JOB, MEMORY_FOLDER, MEMORY_PROBLEM
from .kept_states import KeptStates
from .layout import Layout
from .managed_states import ManagedStates
from .managed_tier import ManagedTier
from .states import MemoryStates

LOCAL_SIZE = "LOCAL_WORLD_SIZE"
"""Variable of torchrun's environment with the number of this node's processes."""


@dataclass(frozen=True)
class _Offer:
    """Memory that the launcher of one process offers."""

    folder: str
    """Folder on the node; empty without one."""
    managed_job: str
    """Name of the job in HyperPod's managed tier; empty without it."""
    problem: str
    """Reason why the launcher could not create the folder; empty if there is none."""
    local_size: int
    """Number of processes on the node."""


def _offer(here: Processes) -> _Offer:
    environment = os.environ
    return _Offer(
        environment.get(MEMORY_FOLDER, ""),
        environment.get(MANAGED_JOB, ""),
        environment.get(MEMORY_PROBLEM, ""),
        int(environment.get(LOCAL_SIZE, here.world_size)),
    )


def states_in_memory(
    config: RunConfig, here: Processes, identity: Mapping[str, Any]
) -> KeptStates | None:
    """Return the states that a run keeps in memory; None if it keeps none.

    Args:
        config: configuration of the run.
        here: this process; every process calls this.
        identity: values that identify the run.
    """
    steps = config.train.memory_checkpoint_steps
    mine = _offer(here)
    offers = here.gather({here.rank: mine})
    is_managed = all(offer.managed_job for offer in offers.values())
    has_place = is_managed or all(offer.folder for offer in offers.values())
    problem = next((offer.problem for offer in offers.values() if offer.problem), "")
    is_one_node = mine.local_size == here.world_size
    is_wanted = steps is not None or ((has_place or bool(problem)) and not is_one_node)
    if steps == 0 or not is_wanted:
        return None
    shard_size = 1
    if config.parallel.mode == "fsdp":
        shard_size = config.parallel.shard_size or here.world_size
    # The tier copies pieces itself, so each of them is written once.
    writers = here.world_size if is_managed else mine.local_size
    layout = Layout(here.world_size, writers, shard_size)
    if not has_place and not problem:
        problem = "the run is no job of a cluster whose launcher offers memory"
    elif here.runtime.checkpoints_on_host:
        problem = "this device's states are copied to the host of the first process alone"
    elif len({offer.local_size for offer in offers.values()}) > 1:
        problem = "the nodes have different numbers of processes"
    problem = problem or layout.problem
    tier: ManagedTier | None = None
    if is_managed and not problem:
        tier, problem = _open_tier(mine.managed_job, here)
    if problem:
        _warn(here, f"no states are kept in memory: {problem}. A restart uses checkpoints")
        return None
    interval = Interval(steps, config.train.save_every_steps)
    own = {"run": str(config.run_dir.absolute()), "identity": dict(identity)}
    if tier is not None:
        return ManagedStates(tier, here, layout, mine.local_size, interval, own)
    if is_one_node:
        _warn(
            here,
            "the job has one node, so states in memory have no copy on another one and are lost with the "
            "node",
        )
    return MemoryStates(Path(mine.folder), here, layout, interval, own)


def _open_tier(job: str, here: Processes) -> tuple[ManagedTier | None, str]:
    """Return the managed tier, or the problem of the first process that has one, on every process."""
    tier: ManagedTier | None = None
    problem = ""
    try:
        tier = ManagedTier(job, here.rank, here.world_size)
        # One process creates the place of the job, because the service refuses to create it twice.
        if here.is_first:
            tier.create()
    except OSError as error:
        problem = str(error)
    problems = here.gather({here.rank: problem})
    return tier, next(filter(None, problems.values()), "")


def _warn(here: Processes, text: str) -> None:
    if here.is_first:
        print(f"warning: train.memory_checkpoint_steps: {text}", flush=True)
