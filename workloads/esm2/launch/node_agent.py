"""torchrun on one node of a job: ``python -m workloads.esm2.launch.node_agent JOB ATTEMPT FIRST-NODE``.

The first node is where all meet (c10d). What the node's processes end with is left in the job's folder,
where the supervisor finds it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.launcher.api import LaunchConfig

from ..command_line import ERROR_FILE
from ..stop import STOPPED_BY_SIGNAL
from .job_file import Job, read_job
from .slurm_attempts import endings_folder
from .slurm_step import stage_arguments
from .torchrun import SHUTDOWN_TIMEOUT_SECONDS, Ending, run_processes

FIRST_PORT, NUM_PORTS = 20_000, 10_000
MODULES = {"train": "workloads.esm2.train", "evaluate": "workloads.esm2.evaluate"}


def main() -> None:
    job_file, attempt, first_node = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    job, node = read_job(job_file), os.environ["SLURMD_NODENAME"]
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // job.processes_per_node)))
    with tempfile.TemporaryDirectory(prefix="esm2-") as folder:
        message = Path(folder) / "message"
        os.environ[ERROR_FILE] = str(message)
        arguments = ["-m", MODULES[job.stage], *stage_arguments(job, job_file.parent)]
        try:
            ending = run_processes(_launch_config(job, attempt, node, first_node), arguments)
        except RendezvousError as error:
            ending = Ending(1, None, time.time())
            message.write_text(f"the nodes could not meet at {first_node}: {error}")
        said = message.read_text() if message.exists() else ""
    record = {"node": node, "rank": ending.rank, "status": ending.status, "seconds": ending.seconds}
    path = endings_folder(job_file.parent, attempt) / f"{node}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**record, "message": said}) + "\n")
    # A graceful stop is no failure: Slurm would end the other nodes' tasks, which are still saving.
    raise SystemExit(0 if ending.status == STOPPED_BY_SIGNAL else ending.status)


def _launch_config(job: Job, attempt: str, node: str, first_node: str) -> LaunchConfig:
    job_id, num_nodes = os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_STEP_NUM_NODES"])
    return LaunchConfig(
        min_nodes=num_nodes,
        max_nodes=num_nodes,
        nproc_per_node=job.processes_per_node,
        run_id=f"{job_id}-{attempt}",
        rdzv_backend="c10d",
        rdzv_endpoint=f"{first_node}:{FIRST_PORT + int(job_id) % NUM_PORTS}",
        rdzv_configs={"is_host": node == first_node},
        local_addr=node,
        max_restarts=0,
        shutdown_timeout=SHUTDOWN_TIMEOUT_SECONDS,
    )


if __name__ == "__main__":
    main()
