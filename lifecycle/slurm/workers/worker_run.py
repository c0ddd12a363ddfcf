"""Run of the scripts on one worker, as a job of root beside the users' jobs."""

import shlex
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from node_setup.host import Host
from node_setup.slurm import SlurmNode

SCRIPT_MEMORY_MIB = 1024
"""Memory for the scripts; a node with less gives all of it."""
MINUTES_FOR_SCRIPT = 90
"""Time limit of the job, longer than a run that waits for a mount, for Slurm and for another run."""
QUEUED = "node-setup-queued"
"""Name of jobs that wait on full nodes."""
QUEUED_LOG = "/var/log/provision/queued.log"
KEPT_LINES = 15
"""Lines kept from the output of a failed run."""
BEGUN = "run_from_s3: "
"""First words of run_from_s3.sh."""
ERROR = "ERROR: "
"""Prefix of the line with the failure and its remedy."""


@dataclass(frozen=True)
class Source:
    """Scripts in S3, and the script that fetches them."""

    region: str
    s3_uri: str
    fetch_script: str
    """Text of run_from_s3.sh."""
    steps: str = ""
    """Names of the steps to run, separated by commas; empty for all."""


@dataclass(frozen=True)
class Outcome:
    node: str
    begun: bool
    """Whether a job has started there; false if the wait was too long."""
    status: int
    summary: str
    """Outcome in one line."""
    output: tuple[str, ...] = ()
    """Last lines of a failed run."""
    is_full: bool = False
    """Whether no job could start, because other jobs have all cores."""
    queued: bool = False
    """Whether a job waits for a free core."""

    @property
    def state(self) -> str:
        if self.queued:
            return "queued"
        return "done" if self.is_done else "NOT DONE"

    @property
    def is_done(self) -> bool:
        return (self.begun or self.queued) and self.status == 0


def run_on_worker(
    host: Host,
    node: SlurmNode,
    source: Source,
    *,
    wait_seconds: float,
    reservation: str | None,
    say: Callable[[str], None],
) -> Outcome:
    """Run the scripts on a node through Slurm, and wait at most ``wait_seconds`` for free resources."""
    process = subprocess.Popen(
        _command(node, source, reservation),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    begun = threading.Event()
    jobs: list[str] = []

    def give_up() -> None:
        if not begun.is_set():
            # The running jobs of the node, as ``12 (ada), 14 (ada)``.
            found = host.try_run(
                "squeue", "--noheader", f"--nodelist={node.name}", "--states=R", "--format=%i (%u)"
            )
            running = found.output.splitlines() if found.status == 0 else []
            jobs.append(", ".join(running))
            process.terminate()

    waiting = threading.Timer(wait_seconds, give_up)
    waiting.start()
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    error = ""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            line = line.rstrip("\n")
            if line.startswith(BEGUN):
                begun.set()
                say(f"{node.name}: begun")
            error = line.partition(ERROR)[2] or error
            lines.append(line)
        status = process.wait()
    finally:
        waiting.cancel()
    if jobs and not begun.is_set():
        because = f"; jobs on it: {jobs[0]}" if jobs[0] else ""
        problem = (
            f"no room for a job of one core within {wait_seconds / 60:g} minutes{because}; repeat this "
            "command when the node has room, or raise --wait-minutes"
        )
        return Outcome(node.name, begun=False, status=status, summary=problem, is_full=True)
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    if status == 0 and begun.is_set():
        return Outcome(node.name, begun=True, status=0, summary=last.rpartition("done: ")[2])
    summary = error or f"`srun` ended with {status}: {last}"
    return Outcome(
        node.name, begun=begun.is_set(), status=status or 1, summary=summary, output=tuple(lines)
    )


def queue_on_worker(host: Host, node: SlurmNode, source: Source) -> Outcome:
    """Queue the scripts on a node that is full of jobs, before all other waiting jobs.

    Raises:
        SetupError: if Slurm refuses.
    """
    job = host.run(
        "sbatch",
        "--parsable",
        *_options(node),
        f"--job-name={QUEUED}",
        "--requeue",
        f"--output={QUEUED_LOG}",
        f"--wrap={shlex.join(_program(source))}",
    )
    summary = f"full; job {job.strip().partition(';')[0]} runs as soon as a core is free"
    return Outcome(node.name, begun=False, status=0, summary=summary, queued=True)


def cancel_queued(host: Host) -> None:
    """Cancel waiting jobs of earlier commands, which would run earlier versions of the scripts."""
    host.run("scancel", f"--name={QUEUED}", "--state=PENDING")


def _command(node: SlurmNode, source: Source, reservation: str | None) -> list[str]:
    """Return the srun command for a job beside other jobs."""
    return [
        "srun",
        *_options(node, reservation),
        "--job-name=node-setup",
        # The image may lack the default plugin, and the job is not parallel.
        "--mpi=none",
        "--input=none",
        *_program(source),
    ]


def _options(node: SlurmNode, reservation: str | None = None) -> list[str]:
    """Return the options for one core, little memory and top priority, to fit beside other jobs."""
    reserved = [f"--reservation={reservation}"] if reservation else []
    return [
        f"--nodelist={node.name}",
        f"--partition={node.partitions[0]}",
        *reserved,
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=1",
        f"--mem={min(SCRIPT_MEMORY_MIB, node.memory_mib)}M",
        f"--time={MINUTES_FOR_SCRIPT}",
        "--priority=TOP",
        "--chdir=/",
    ]


def _program(source: Source) -> list[str]:
    """Return the command on the node, which fetches the scripts and runs them."""
    # The output is read on the controller, so nothing has to be shipped before a failure.
    variables = ["SECONDS_TO_SHIP_LOG=0"]
    if source.steps:
        variables.append(f"NODE_SETUP_STEPS={source.steps}")
    return [
        "bash",
        "-c",
        source.fetch_script,
        "run_from_s3.sh",
        source.region,
        source.s3_uri,
        "env",
        *variables,
        "bash",
        "on_init_complete.sh",
    ]
