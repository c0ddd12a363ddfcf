"""Supervisor in the batch script of a job: checks its nodes, starts the stage on them and waits for its end.

``python3 -m seqlm.launch.slurm_supervisor JOB``, by the node's own Python: standard library alone.

The step is stopped before the time limit (SIGUSR1, from Slurm) and the job requeued; stopped for good by
SIGUSR2 (``make cancel``). A crash is tried again, ``max_crashes`` times without progress: a new checkpoint,
or of inference another part of its table. A node that fails a check is excluded and the job requeued. A hang
requeues it, too; a node that is to blame for a second one is excluded. The loss of a node is Slurm's to see,
which requeues the job.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from seqlm.runs.stages import STAGES
from seqlm.training.command_line import STOPPED_BY_SIGNAL, USAGE_ERROR

from .hang_report import Observed, blame, report
from .job_file import Job, read_job
from .network_check import AGENT, NetworkCheck, Verdict, check_nodes
from .slurm_attempts import (
    CANCELLED_FILE,
    State,
    first_failure,
    hung_processes,
    progress,
    read_state,
    stacks_folder,
    stopped,
)
from .slurm_step import srun_help, stage_arguments, step_command

MAX_REQUEUES = 5
"""Requeues by the job itself without progress in between."""
WAIT_MINUTES = 30
"""Wait until the next start if no other nodes are left; HyperPod replaces a node in 20 to 30 minutes."""
SECONDS_BETWEEN_SIGNALS = 15
"""A starting step may miss a signal."""
REQUEST_SECONDS = 60
"""Limit of one request to Slurm: its programs give up after once or twice MessageTimeout (10 s usually)."""
PATIENCE_SECONDS = 600.0
"""Longest wait for a controller that does not answer. The nodes of the job are idle meanwhile."""
PAUSE_SECONDS = 10.0


class Supervisor:
    """One allocation of a job; what it must remember longer is in ``State``."""

    def __init__(self, job_file: Path) -> None:
        self.job_file, self.folder = job_file, job_file.parent
        self.job: Job = read_job(job_file)
        self.stage = STAGES[self.job.stage]
        self.job_id = os.environ["SLURM_JOB_ID"]
        shown = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
        self.nodes = subprocess.check_output(shown, text=True, timeout=REQUEST_SECONDS).split()
        self.restart = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        self.state: State = read_state(self.folder)
        self.stop: signal.Signals | None = None
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def run(self) -> int:
        """The exit status of the job, unless it is requeued."""
        say(f"job {self.job_id}, start {self.restart + 1}, on {' '.join(self.nodes)}")
        self.state.progress_to(progress(self.job))
        self.state.write(self.folder)
        if self._is_cancelled():
            return self._cancel()
        options = srun_help()
        if self.job.image and "--container-image" not in options:
            say("error: srun has no --container-image: pyxis is missing here; docs/training-on-slurm.md")
            return USAGE_ERROR
        verdict = self._check(options)
        if verdict.is_well and self.stop is None:
            self.state.clear(self.nodes)
            self.state.write(self.folder)
        for attempt in itertools.count(1):
            name, status = f"{self.restart}.{attempt}", STOPPED_BY_SIGNAL
            if verdict.is_well and self.stop is None:
                status = self._attempt(name, options)
                # A crash beside a node that is lost is none of its own, so it does not count yet.
                if self.stop is None and status:
                    verdict = check_nodes(self.job_file, self.nodes)
            hung = hung_processes(self.folder, name) if status else []
            if hung:
                self._blame(name, hung)
            if self.stop is not None:
                return self._on_stop(name, status)
            if not verdict.is_well:
                return self._on_bad_nodes(verdict)
            if hung:
                return self._requeue("it hung")
            if status == 0:
                say(f"done: {self.job.output or self.job.run_dir}")
                return 0
            if (ends_with := self._on_crash(name, status)) is not None:
                return ends_with
        raise AssertionError("attempts are counted without end")

    def _check(self, options: str) -> Verdict:
        """Check each node, and then the network between them if a stage uses it.

        Neuron devices are left out, because the check uses the all-reduce of NCCL and gloo.
        """
        verdict = check_nodes(self.job_file, self.nodes)
        num_processes = len(self.nodes) * self.job.processes_per_node
        is_checked = num_processes > 1 and not (self.stage.one_process or self.job.neuron_devices)
        if not verdict.is_well or self.stop is not None or not is_checked:
            return verdict
        check = NetworkCheck(
            self.job_file, self.job, options, str(self.restart), say, lambda: self.stop is not None
        )
        return check.run(self.nodes, self.state.kept)

    def _attempt(self, name: str, options: str) -> int:
        """Prepare the data if need be, then run the stage; its status."""
        arguments = stage_arguments(self.job, self.folder)
        lacks_data = bool(self.job.data_manifest) and not Path(self.job.data_manifest).exists()
        if self.stage.one_process or lacks_data:
            program = ["-m", *self.stage.data_program, *arguments]
            command = step_command(self.job, options, num_nodes=1, arguments=program)
            status = self._run(command)
            if self.stage.one_process or status:
                return status
            if self.stop is not None:
                return STOPPED_BY_SIGNAL
        agent = ["-m", AGENT, str(self.job_file), name, self.job.stage, ",".join(self.nodes)]
        return self._run(step_command(self.job, options, num_nodes=len(self.nodes), arguments=agent))

    def _run(self, command: list[str]) -> int:
        process = subprocess.Popen(command, cwd=self.job.work_folder, stdin=subprocess.DEVNULL)
        while True:
            try:
                return process.wait(SECONDS_BETWEEN_SIGNALS)
            except subprocess.TimeoutExpired:
                if self.stop is not None:
                    self._signal_steps()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # What is cancelled stays so when its time limit comes a moment later.
        if self.stop != signal.SIGUSR2:
            self.stop = signal.Signals(number)
        # SIGTERM is Slurm's, which sends it to the steps itself.
        if number != signal.SIGTERM:
            self._signal_steps()

    def _signal_steps(self) -> None:
        ask("scancel", "--quiet", "--signal=TERM", self.job_id)

    def _on_stop(self, attempt: str, status: int) -> int:
        assert self.stop is not None
        said = stopped(self.folder, attempt)
        if status == 0 and not said:
            say(f"done, just before it was to stop: {self.job.output or self.job.run_dir}")
            return 0
        how = "saved" if any(said) else "ended"
        what = "parts that are written:" if self.job.output else "the newest checkpoint is of step"
        say(f"{how} on {self.stop.name}; {what} {progress(self.job)}")
        if self.stop == signal.SIGUSR1:
            return self._requeue("the time limit is near")
        return self._cancel() if self._is_cancelled() else STOPPED_BY_SIGNAL

    @property
    def _since(self) -> str:
        return f"since {'part' if self.job.output else 'step'} {self.state.step}"

    def _is_cancelled(self) -> bool:
        """Return whether the job is cancelled, by a signal or by the file, which later starts see, too."""
        return self.stop == signal.SIGUSR2 or (self.folder / CANCELLED_FILE).exists()

    def _cancel(self) -> int:
        say("cancelled")
        insist("scancel", self.job_id)
        return STOPPED_BY_SIGNAL

    def _blame(self, attempt: str, hung: list[Observed]) -> None:
        """Say who stood still, and leave a node out that has done so before."""
        found = blame(hung, self.nodes)
        for line in [*report(hung, found), f"stacks: {stacks_folder(self.folder, attempt)}"]:
            say(line)
        self.state.progress_to(progress(self.job))
        if len(found.nodes) != 1:
            return  # what several have in common is more likely the cause
        (node,) = found.nodes
        if node in self.state.suspects:
            say(f"node {node} is left out from now on: it was to blame before, {self._since}")
            self.state.excluded = tuple(sorted({*self.state.excluded, node}))
        self.state.suspects = tuple(sorted({*self.state.suspects, node}))

    def _on_crash(self, attempt: str, status: int) -> int | None:
        """Count it; the job's status if it is not to be tried again."""
        status, text = first_failure(self.folder, attempt, status, self.nodes)
        if status == USAGE_ERROR:
            say(f"error: {text}")
            return USAGE_ERROR
        self.state.progress_to(progress(self.job))
        self.state.crashes += 1
        self.state.first_error = self.state.first_error or text
        self.state.write(self.folder)
        say(f"crash {self.state.crashes} of {self.job.max_crashes} {self._since}: {text}")
        if self.state.crashes < self.job.max_crashes:
            return None
        say(f"error: given up; the first of these crashes was {self.state.first_error}")
        return status or 1

    def _on_bad_nodes(self, verdict: Verdict) -> int:
        if verdict.fatal:
            say(f"error: {verdict.fatal}; this cannot be put down to a single node")
            return USAGE_ERROR
        for node, problem in verdict.bad.items():
            say(f"node {node} is not fit and is left out from now on: {problem}")
        for node in verdict.silent:
            say(f"node {node} does not answer")
        for node in verdict.freed:
            say(f"node {node}, which was left out to find out, was not to blame")
        still = {node: other for node, other in self.state.kept.items() if node not in verdict.bad}
        self.state.kept = {**still, **verdict.kept}
        self.state.excluded = tuple(sorted({*self.state.excluded, *verdict.bad} - {*verdict.freed}))
        return self._requeue("not all of its nodes are well")

    def _requeue(self, why: str) -> int:
        """Requeue the job, which resumes from its newest checkpoint."""
        if self._is_cancelled():
            return self._cancel()
        self.state.progress_to(progress(self.job))
        self.state.requeues += 1
        self.state.write(self.folder)
        if self.state.requeues > MAX_REQUEUES:
            say(f"error: requeued {MAX_REQUEUES} times without progress {self._since}; given up")
            return 1
        say(f"requeue {self.state.requeues} {self._since}: {why}")
        # Slurm ends this process for it. Until then the job cannot start again, and may be changed.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if insist("scontrol", "requeue", self.job_id) is None:
            say("Slurm does not requeue it: it is being ended by someone else, or the cluster forbids it")
            return 1
        if self.state.excluded:
            self._leave_out()
        return 0

    def _leave_out(self) -> None:
        """Have the requeued job start without the excluded nodes, or later if there are not enough others.

        It would wait for good if the node is repaired and keeps its name, or was not to blame.
        """
        partition = os.environ["SLURM_JOB_PARTITION"]
        there = insist("sinfo", "--noheader", "--Node", "--format=%N", f"--partition={partition}") or ""
        # Slurm takes none of a list with a node that was replaced meanwhile and has another name now.
        names = sorted({*self.state.excluded} & {*there.split()})
        changes = [f"ExcNodeList={','.join(names)}"]
        if len({*there.split()}) - len(names) < self.job.min_nodes:
            say(
                f"without {', '.join(names)} too few nodes are left in partition {partition}: it starts "
                f"again in {WAIT_MINUTES} minutes, for nodes may have been replaced by then"
            )
            changes = ["ExcNodeList=", f"StartTime=now+{WAIT_MINUTES}minutes"]
        insist("scontrol", "update", f"JobId={self.job_id}", *changes)


def say(text: str) -> None:
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}", flush=True)


def ask(*command: str) -> str | None:
    """Return what a command printed; None if it failed or gave no answer in time."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=REQUEST_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def insist(*command: str) -> str | None:
    """Ask again as long as the controller does not answer; None if it refuses, or is away for too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        answers = ask("scontrol", "ping") is not None
        if (said := ask(*command)) is not None:
            return said
        if answers or time.monotonic() > deadline:
            return None
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(Supervisor(Path(sys.argv[1])).run())
