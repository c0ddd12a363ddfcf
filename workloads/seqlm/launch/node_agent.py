"""torchrun on one node of a job: ``python -m seqlm.launch.node_agent JOB ATTEMPT STAGE GROUP...``.

A group is the names of its nodes with commas in between. Usually there is one, of all nodes; several run side
by side and know nothing of each other. The first node of a group is where it meets (c10d). What the node's
processes end with is left in the job's folder, where the supervisor finds it.
"""

import os
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousError
from torch.distributed.launcher.api import LaunchConfig

from seqlm.runs.stages import program_of
from seqlm.training.command_line import ERROR_FILE, STOPPED_BY_SIGNAL
from seqlm.training.heartbeat import slow_seconds

from .hang_watch import HangWatch, flight_recorder
from .job_file import SHUTDOWN_TIMEOUT_SECONDS, Job, read_job
from .slurm_attempts import endings_folder, stacks_folder, write_ending
from .slurm_step import stage_arguments
from .torchrun import Ending, elastic_config, run_processes

FIRST_PORT, NUM_PORTS = 20_000, 10_000
CHECK, CHECK_MODULE = "check", "seqlm.launch.network.check"
MEETING_SECONDS = 600
"""For all nodes of a group to come: torchrun's own bound."""
CHECK_MEETING_SECONDS, CHECK_CONTAINER_MEETING_SECONDS, CHECK_SHUTDOWN_SECONDS = 60, 300, 5
"""A check finds out in time that nodes cannot meet. Containers begin apart: a node that has just replaced
another reads an image of 20 GB from the shared file system, which the others still have in memory."""
CHECK_MEETING_VARIABLE = "ESM2_CHECK_MEETING_SECONDS"
"""An environment variable that replaces these bounds; only tests of a cut network set it."""


def main() -> None:
    job_file, attempt, stage = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    job, node = read_job(job_file), os.environ["SLURMD_NODENAME"]
    group = find_group(node, sys.argv[4:])
    endings, stacks = endings_folder(job_file.parent, attempt), stacks_folder(job_file.parent, attempt)
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // job.processes_per_node)))
    with tempfile.TemporaryDirectory(prefix="esm2-") as folder:
        message = Path(folder) / "message"
        os.environ[ERROR_FILE] = str(message)
        arguments = ["-m", CHECK_MODULE]
        if stage != CHECK:
            arguments = ["-m", *program_of(stage), *stage_arguments(job, job_file.parent)]
        if job.gpus_per_node:
            os.environ |= flight_recorder(Path(folder), stacks)
        watch = HangWatch(
            beats=Path(folder),
            stacks=stacks,
            endings=endings,
            node=node,
            num_nodes=len(group),
            num_processes=job.processes_per_node,
            hang_seconds=job.hang_seconds,
            start_seconds=slow_seconds(),
        )
        config = launch_config(job, attempt, stage, node, group)
        try:
            with watch:
                if node != group[0]:
                    wait_for_first(config)
                ending = run_processes(config, arguments)
        except RendezvousError as error:
            ending = Ending(1, None, time.time())
            reason = str(error.__cause__ or error).partition("\n")[0] or "not all of them came in time"
            message.write_text(f"{len(group)} node(s) could not meet at {group[0]}: {reason}")
        said = message.read_text() if message.exists() else ""
    if watch.hung:
        raise SystemExit(1)  # what is to be said of it has been
    write_ending(endings, node, rank=ending.rank, status=ending.status, seconds=ending.seconds, message=said)
    # A graceful stop is no failure: Slurm would end the other nodes' tasks, which are still saving.
    raise SystemExit(0 if ending.status == STOPPED_BY_SIGNAL else ending.status)


def find_group(node: str, groups: Sequence[str]) -> list[str]:
    """The nodes of the group that the node is in.

    Raises:
        ValueError: if it is in none.
    """
    for group in groups:
        if node in (names := group.split(",")):
            return names
    raise ValueError(f"{node} is in none of the groups {' '.join(groups)}")


def launch_config(job: Job, attempt: str, stage: str, node: str, group: Sequence[str]) -> LaunchConfig:
    """Return the settings with which the node's processes join their group.

    Neighbouring steps of a job meet at different ports: of one that was killed, processes may still end.
    """
    run_id = f"{os.environ['SLURM_JOB_ID']}-{attempt}"
    seconds = MEETING_SECONDS
    if stage == CHECK:
        usual = CHECK_CONTAINER_MEETING_SECONDS if job.image else CHECK_MEETING_SECONDS
        seconds = int(os.environ.get(CHECK_MEETING_VARIABLE, usual))
    return elastic_config(
        num_nodes=len(group),
        nproc_per_node=job.processes_per_node,
        run_id=run_id,
        rdzv_endpoint=f"{group[0]}:{FIRST_PORT + zlib.crc32(run_id.encode()) % NUM_PORTS}",
        rdzv_configs={"is_host": node == group[0], "join_timeout": seconds},
        local_addr=node,
        shutdown_timeout=CHECK_SHUTDOWN_SECONDS if stage == CHECK else SHUTDOWN_TIMEOUT_SECONDS,
    )


def wait_for_first(config: LaunchConfig) -> None:
    """Wait until the group's first node listens. torchrun waits for a minute, in which no signal reaches it.

    Raises:
        RendezvousConnectionError: if it does not listen within the time limit for all nodes.
    """
    host, _, port = config.rdzv_endpoint.rpartition(":")
    deadline = time.monotonic() + config.rdzv_configs["join_timeout"]
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise RendezvousConnectionError(str(error)) from None
        time.sleep(0.2)


if __name__ == "__main__":
    main()
