"""Supervisor in the batch script of a job: checks its nodes, starts the stage on them and waits for its end.

``python3 -m seqlm.launch.slurm_supervisor JOB``, run by the node's own Python: standard library only.

* Slurm sends SIGUSR1 before the time limit. The step is stopped, and the job is requeued.
* ``make cancel`` sends SIGUSR2. The step is stopped, and the job ends.
* After a crash, the stage starts again. The job ends after ``max_crashes`` crashes without progress, which is
  a new checkpoint, or another part of the table of an inference.
* If a node fails a check, it is excluded, and the job is requeued.
* After a hang, the job is requeued. A node that causes a second hang is excluded.
* If the run reports a node as unfit (``train.exclude_unfit_nodes``) and the partition has another one, the
  step is stopped, the node is excluded, and the job is requeued.
* If a node is lost, Slurm itself requeues the job.
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
from seqlm.training.health.unfit_nodes import forget_unfit, unfit_nodes
from seqlm.training.memory.job_folder import path_of

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
from .slurm_step import srun, srun_help, stage_arguments, step_command

MAX_REQUEUES = 5
"""Largest number of requeues by the job itself without progress."""
WAIT_MINUTES = 30
"""Wait for other nodes before the next start. HyperPod replaces a node in 20 to 30 minutes."""
SECONDS_BETWEEN_SIGNALS = 15
"""Time after which a signal to the steps is repeated, because a step that starts may miss it."""
REQUEST_SECONDS = 60
"""Limit of one request to Slurm. Its programs give up after one or two MessageTimeouts (usually 10 s)."""
PATIENCE_SECONDS = 600.0
"""Longest wait for a controller that does not answer. The nodes of the job are idle meanwhile."""
PAUSE_SECONDS = 10.0
"""Time between two requests to a controller that does not answer."""


class Supervisor:
    """Supervisor of a job on one allocation. ``State`` has what later allocations need.

    Args:
        job_file: ``job.json`` of the job.
    """

    def __init__(self, job_file: Path) -> None:
        self.job_file = job_file
        self.folder = job_file.parent
        self.job: Job = read_job(job_file)
        self.stage = STAGES[self.job.stage]
        self.job_id = os.environ["SLURM_JOB_ID"]
        shown = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
        self.nodes = subprocess.check_output(shown, text=True, timeout=REQUEST_SECONDS).split()
        self.restart = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        self.state: State = read_state(self.folder)
        self.stop: signal.Signals | None = None
        """Signal that stops the job, once it has come."""
        self.unfit: dict[str, str] = {}
        """Nodes that the run has reported as unfit, with the reasons."""
        self.leaves_unfit = False
        """Whether the job continues without these nodes."""
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def run(self) -> int:
        """Run the job to its end or to a requeue, and return the exit status."""
        status = self._run()
        has_failed = status and self.stop is None and not self._is_cancelled()
        if has_failed and self.stage.trained_by == "seqlm":
            # The nodes' agents have kept the states in memory for another start, which does not come.
            folder = str(path_of(self.job_id))
            ask(*srun(len(self.nodes)), "rm", "--recursive", "--force", folder)
        return status

    def _run(self) -> int:
        say(f"job {self.job_id}, start {self.restart + 1}, on {' '.join(self.nodes)}")
        self.state.progress_to(progress(self.job))
        self.state.write(self.folder)
        if self._is_cancelled():
            return self._cancel()
        options = srun_help()
        if self.job.image and "--container-image" not in options:
            say(
                "error: srun has no --container-image: pyxis is missing here; docs/training-on-slurm.md"
            )
            return USAGE_ERROR
        verdict = self._check(options)
        if verdict.is_well and self.stop is None:
            self.state.clear(self.nodes)
            self.state.write(self.folder)
        for attempt in itertools.count(1):
            name = f"{self.restart}.{attempt}"
            status = STOPPED_BY_SIGNAL
            if verdict.is_well and self.stop is None:
                status = self._attempt(name, options)
                # A crash caused by a lost node does not count.
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
            if status:  # the run may have ended at once
                self._look_for_unfit()
            if self.leaves_unfit and (status or stopped(self.folder, name)):
                return self._leave_unfit()
            if status == 0:
                say(f"done: {self.job.output or self.job.run_dir}")
                return 0
            final_status = self._on_crash(name, status)
            if final_status is not None:
                return final_status
        raise AssertionError("attempts are counted without end")

    def _check(self, options: str) -> Verdict:
        """Check each node, and then the network between them if a stage uses it.

        Neuron devices are left out, because the check uses the all-reduce of NCCL and gloo.
        """
        verdict = check_nodes(self.job_file, self.nodes)
        num_processes = len(self.nodes) * self.job.processes_per_node
        uses_network = num_processes > 1 and not (self.stage.one_process or self.job.neuron_devices)
        if not verdict.is_well or self.stop is not None or not uses_network:
            return verdict
        check = NetworkCheck(
            job_file=self.job_file,
            job=self.job,
            help_text=options,
            attempt=str(self.restart),
            say=say,
            is_stopped=lambda: self.stop is not None,
        )
        return check.run(self.nodes, self.state.kept)

    def _attempt(self, name: str, options: str) -> int:
        """Prepare the data if they are missing, run the stage, and return its exit status."""
        self.unfit = {}
        self.leaves_unfit = False
        forget_unfit(Path(self.job.run_dir))
        arguments = stage_arguments(self.job, self.folder)
        lacks_data = bool(self.job.data_manifest) and not Path(self.job.data_manifest).exists()
        if self.stage.one_process or lacks_data:
            program = ["-m", *self.stage.data_program, *arguments]
            command = step_command(self.job, options, num_nodes=1, arguments=program)
            status = self._run_step(command)
            if self.stage.one_process or status:
                return status
            if self.stop is not None:
                return STOPPED_BY_SIGNAL
        agent = ["-m", AGENT, str(self.job_file), name, self.job.stage, ",".join(self.nodes)]
        return self._run_step(
            step_command(self.job, options, num_nodes=len(self.nodes), arguments=agent)
        )

    def _run_step(self, command: list[str]) -> int:
        """Run a step to its end, and repeat the signal if it is to stop. Return the exit status."""
        process = subprocess.Popen(command, cwd=self.job.work_folder, stdin=subprocess.DEVNULL)
        while True:
            try:
                return process.wait(SECONDS_BETWEEN_SIGNALS)
            except subprocess.TimeoutExpired:
                if self.stop is None:
                    self._look_for_unfit()
                if self.stop is not None or self.leaves_unfit:
                    self._signal_steps()

    def _look_for_unfit(self) -> None:
        """Decide whether the job continues without the nodes that the run has reported as unfit."""
        reported = unfit_nodes(Path(self.job.run_dir))
        new = {node: reason for node, reason in reported.items() if node not in self.unfit}
        if not new:
            return
        self.unfit |= new
        for node, reason in new.items():
            say(f"node {node} is not fit: {reason}")
        others = self._existing_nodes() - {*self.state.excluded, *self.unfit}
        self.leaves_unfit = len(others) >= self.job.min_nodes
        if not self.leaves_unfit:
            say(
                f"it stays in use: the partition has only {len(others)} others, the job needs "
                f"{self.job.min_nodes}"
            )

    def _leave_unfit(self) -> int:
        """Exclude the nodes that the run has reported as unfit, and requeue the job."""
        say(f"left out from now on: {', '.join(sorted(self.unfit))}")
        self.state.excluded = tuple(sorted({*self.state.excluded, *self.unfit}))
        return self._requeue("the run has reported unfit hardware")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A time limit must not overwrite a cancellation.
        if self.stop != signal.SIGUSR2:
            self.stop = signal.Signals(number)
        # Slurm sends SIGTERM, to the steps as well.
        if number != signal.SIGTERM:
            self._signal_steps()

    def _signal_steps(self) -> None:
        ask("scancel", "--quiet", "--signal=TERM", self.job_id)

    def _on_stop(self, attempt: str, status: int) -> int:
        """Requeue or cancel the job after a signal, and return its exit status."""
        assert self.stop is not None
        messages = stopped(self.folder, attempt)
        if status == 0 and not messages:
            say(f"done, just before it was to stop: {self.job.output or self.job.run_dir}")
            return 0
        how = "saved" if any(messages) else "ended"
        what = "parts that are written:" if self.job.output else "the newest checkpoint is of step"
        say(f"{how} on {self.stop.name}; {what} {progress(self.job)}")
        if self.stop == signal.SIGUSR1:
            return self._requeue("the time limit is near")
        return self._cancel() if self._is_cancelled() else STOPPED_BY_SIGNAL

    @property
    def _since(self) -> str:
        """Progress since which crashes and requeues count, as messages give it."""
        return f"since {'part' if self.job.output else 'step'} {self.state.step}"

    def _is_cancelled(self) -> bool:
        """Return whether the job is cancelled, by a signal or by the file, which later starts read."""
        return self.stop == signal.SIGUSR2 or (self.folder / CANCELLED_FILE).exists()

    def _cancel(self) -> int:
        say("cancelled")
        insist("scancel", self.job_id)
        return STOPPED_BY_SIGNAL

    def _blame(self, attempt: str, hung: list[Observed]) -> None:
        """Report the processes that caused a hang, and exclude a node that caused one before."""
        found = blame(hung, self.nodes)
        for line in [*report(hung, found), f"stacks: {stacks_folder(self.folder, attempt)}"]:
            say(line)
        self.state.progress_to(progress(self.job))
        if len(found.nodes) != 1:
            return  # the cause is more likely something that the nodes have in common
        (node,) = found.nodes
        if node in self.state.suspects:
            say(f"node {node} is left out from now on: it was to blame before, {self._since}")
            self.state.excluded = tuple(sorted({*self.state.excluded, node}))
        self.state.suspects = tuple(sorted({*self.state.suspects, node}))

    def _on_crash(self, attempt: str, status: int) -> int | None:
        """Count a crash. Return the exit status of the job, or None if the stage is to start again."""
        failure = first_failure(self.folder, attempt, status, self.nodes)
        if failure.status == USAGE_ERROR:
            say(f"error: {failure.text}")
            return USAGE_ERROR
        self.state.progress_to(progress(self.job))
        self.state.crashes += 1
        self.state.first_error = self.state.first_error or failure.text
        self.state.write(self.folder)
        say(f"crash {self.state.crashes} of {self.job.max_crashes} {self._since}: {failure.text}")
        if self.state.crashes < self.job.max_crashes:
            return None
        say(f"error: given up; the first of these crashes was {self.state.first_error}")
        return failure.status or 1

    def _on_bad_nodes(self, verdict: Verdict) -> int:
        """Exclude faulty nodes and requeue the job, unless the fault is not that of a node."""
        if verdict.fatal:
            say(f"error: {verdict.fatal}; this cannot be put down to a single node")
            return USAGE_ERROR
        for node, problem in verdict.bad.items():
            say(f"node {node} is not fit and is left out from now on: {problem}")
        for node in verdict.silent:
            say(f"node {node} does not answer")
        for node in verdict.freed:
            say(f"node {node}, which was left out to find out, was not to blame")
        still_kept = {
            node: other for node, other in self.state.kept.items() if node not in verdict.bad
        }
        self.state.kept = {**still_kept, **verdict.kept}
        excluded = {*self.state.excluded, *verdict.bad} - {*verdict.freed}
        self.state.excluded = tuple(sorted(excluded))
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
        # Slurm ends this process with SIGTERM. Until then the job cannot start, and can still be changed.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if insist("scontrol", "requeue", self.job_id) is None:
            say(
                "Slurm does not requeue it: it is being ended by someone else, or the cluster forbids it"
            )
            return 1
        if self.state.excluded:
            self._exclude_nodes()
        return 0

    @staticmethod
    def _existing_nodes() -> set[str]:
        """Return the names of the nodes of the job's partition."""
        command = ("sinfo", "--noheader", "--Node", "--format=%N", f"--partition={_partition()}")
        return set((insist(*command) or "").split())

    def _exclude_nodes(self) -> None:
        """Make the requeued job start without the excluded nodes, or later if too few others are left.

        In the second case the nodes are allowed again. Otherwise the job would wait for ever if an excluded
        node is repaired and keeps its name, or was not the cause.
        """
        existing = self._existing_nodes()
        # Slurm rejects a list with a node that was replaced meanwhile and has another name now.
        names = sorted(existing.intersection(self.state.excluded))
        changes = [f"ExcNodeList={','.join(names)}"]
        if len(existing) - len(names) < self.job.min_nodes:
            say(
                f"without {', '.join(names)} too few nodes are left in partition {_partition()}: it starts "
                f"again in {WAIT_MINUTES} minutes, for nodes may have been replaced by then"
            )
            changes = ["ExcNodeList=", f"StartTime=now+{WAIT_MINUTES}minutes"]
        insist("scontrol", "update", f"JobId={self.job_id}", *changes)


def _partition() -> str:
    """Return the name of the job's partition."""
    return os.environ["SLURM_JOB_PARTITION"]


def say(text: str) -> None:
    """Print a line with the time to the job's log."""
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}", flush=True)


def ask(*command: str) -> str | None:
    """Return the output of a command, or None if it failed or took too long."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=REQUEST_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def insist(*command: str) -> str | None:
    """Run a command of Slurm, and repeat it while the controller does not answer.

    Returns:
        The output, or None if the controller refused the request or was away for too long.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        controller_answers = ask("scontrol", "ping") is not None
        output = ask(*command)
        if output is not None:
            return output
        if controller_answers or time.monotonic() > deadline:
            return None
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(Supervisor(Path(sys.argv[1])).run())
