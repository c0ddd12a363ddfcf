"""torchrun on one node of a job: ``python -m seqlm.launch.node_agent JOB ATTEMPT STAGE GROUP...``.

A group is a list of node names with commas between them. Usually one group has all nodes; several groups run
independently of each other. The processes of a group meet on its first node (c10d). The agent records the end
of the node's processes in the job's folder, for the supervisor.
"""

import os
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousError
from torch.distributed.launcher.api import LaunchConfig

from seqlm.runs.stages import program_of
from seqlm.training.command_line import ERROR_FILE, STOPPED_BY_SIGNAL
from seqlm.training.heartbeat import slow_seconds

from .hang_channel import HangChannel, HangServer
from .hang_watch import HangWatch, flight_recorder
from .job_file import SHUTDOWN_TIMEOUT_SECONDS, Job, read_job
from .node_memory import NodeMemory, node_memory
from .slurm_attempts import endings_folder, stacks_folder, write_ending
from .slurm_step import stage_arguments
from .torchrun import Ending, Restarts, elastic_config, run_processes

FIRST_PORT = 20_000
NUM_PORTS = 10_000
"""Number of the ports of groups. A group meets at an even one, and reports hangs at the next one."""
CHECK = "check"
"""Name of the network check, in place of a stage."""
CHECK_MODULE = "seqlm.launch.network.check"
MEETING_SECONDS = 600
"""Longest wait for all nodes of a group, as torchrun has it by default."""
CHECK_MEETING_SECONDS = 60
"""Longest wait in a network check, so that it soon reports nodes that cannot meet."""
CHECK_CONTAINER_MEETING_SECONDS = 300
"""Longest wait in a check with containers, which start at different times: a node that has just replaced
another one reads an image of 20 GB from the shared file system, which the others have in memory."""
CHECK_MEETING_VARIABLE = "ESM2_CHECK_MEETING_SECONDS"
"""Environment variable that replaces these two limits. Only tests of a broken network set it."""
CHECK_SHUTDOWN_SECONDS = 5
"""Time from SIGTERM to SIGKILL in a network check."""


def main() -> None:
    """Run the processes of this node, and exit with their status."""
    _, job_path, attempt, stage, *groups = sys.argv
    job_file = Path(job_path)
    job = read_job(job_file)
    node = os.environ["SLURMD_NODENAME"]
    group = find_group(node, groups)
    endings = endings_folder(job_file.parent, attempt)
    stacks = stacks_folder(job_file.parent, attempt)
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
        config = launch_config(job, attempt, stage, node, group)
        channel = hang_channel(config, node, group)
        watch = HangWatch(
            channel=channel,
            beats=Path(folder),
            stacks=stacks,
            endings=endings,
            node=node,
            num_nodes=len(group),
            num_processes=job.processes_per_node,
            hang_seconds=job.hang_seconds,
            start_seconds=slow_seconds(),
        )
        try:
            with (
                node_memory(stage, node, message) as memory,
                hang_server(config, node, group),
                channel,
                watch,
            ):
                if node != group[0]:
                    wait_for_first(config)
                restarts = None
                if memory is not None:
                    restarts = Restarts(
                        may_restart=partial(_may_restart, memory, watch),
                        began=memory.restarted,
                    )
                ending = run_processes(config, arguments, restarts)
                if memory is not None:
                    memory.end(ending)
        except RendezvousError as error:
            ending = Ending(1, None, time.time())
            reason = (
                str(error.__cause__ or error).partition("\n")[0] or "not all of them came in time"
            )
            message.write_text(f"{len(group)} node(s) could not meet at {group[0]}: {reason}")
        text = message.read_text() if message.exists() else ""
    if watch.hung:
        raise SystemExit(1)  # the watch has written the record
    write_ending(
        endings, node, rank=ending.rank, status=ending.status, seconds=ending.seconds, message=text
    )
    # A graceful stop is no failure. After one, Slurm would end the other nodes' tasks, which still save.
    raise SystemExit(0 if ending.status == STOPPED_BY_SIGNAL else ending.status)


def _may_restart(memory: NodeMemory, watch: HangWatch, ending: Ending) -> bool:
    return not watch.hung and memory.may_restart(ending)


def find_group(node: str, groups: Sequence[str]) -> list[str]:
    """Return the nodes of the group with this node.

    Raises:
        ValueError: if no group has it.
    """
    for group in groups:
        names = group.split(",")
        if node in names:
            return names
    raise ValueError(f"{node} is in none of the groups {' '.join(groups)}")


def launch_config(
    job: Job, attempt: str, stage: str, node: str, group: Sequence[str]
) -> LaunchConfig:
    """Return the settings with which the node's processes join their group.

    Successive steps of a job use different ports, because processes of a killed step may still hold one.

    Args:
        job: description of the job.
        attempt: name of the attempt.
        stage: name of the stage, or ``CHECK``.
        node: name of this node.
        group: nodes of the group.
    """
    run_id = f"{os.environ['SLURM_JOB_ID']}-{attempt}"
    port = FIRST_PORT + 2 * (zlib.crc32(run_id.encode()) % (NUM_PORTS // 2))
    meeting_seconds = MEETING_SECONDS
    shutdown_seconds = SHUTDOWN_TIMEOUT_SECONDS
    if stage == CHECK:
        usual = CHECK_CONTAINER_MEETING_SECONDS if job.image else CHECK_MEETING_SECONDS
        meeting_seconds = int(os.environ.get(CHECK_MEETING_VARIABLE, usual))
        shutdown_seconds = CHECK_SHUTDOWN_SECONDS
    return elastic_config(
        num_nodes=len(group),
        nproc_per_node=job.processes_per_node,
        run_id=run_id,
        rdzv_endpoint=f"{group[0]}:{port}",
        rdzv_configs={"is_host": node == group[0], "join_timeout": meeting_seconds},
        local_addr=node,
        shutdown_timeout=shutdown_seconds,
    )


def hang_server(
    config: LaunchConfig, node: str, group: Sequence[str]
) -> AbstractContextManager[object]:
    """Return the server of the group's reports of hangs; nothing on other nodes than the first."""
    if len(group) == 1 or node != group[0]:
        return nullcontext()
    return HangServer(_hang_port(config), config.run_id)


def hang_channel(config: LaunchConfig, node: str, group: Sequence[str]) -> HangChannel:
    """Return this node's connection to the server."""
    if len(group) == 1:
        return HangChannel(node)
    return HangChannel(node, host=group[0], port=_hang_port(config), run_id=config.run_id)


def _hang_port(config: LaunchConfig) -> int:
    return int(config.rdzv_endpoint.rpartition(":")[2]) + 1


def wait_for_first(config: LaunchConfig) -> None:
    """Wait until the group's first node listens. torchrun would wait for a minute and ignore signals.

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
