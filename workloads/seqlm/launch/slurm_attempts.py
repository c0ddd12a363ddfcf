"""State that a job keeps between its attempts, on this allocation or after a requeue."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from seqlm.runs.stages import STAGES
from seqlm.training.command_line import OTHER_ENDED, STOPPED_BY_SIGNAL, USAGE_ERROR
from seqlm.training.whole_file import write_whole

from .hang_report import Observed
from .job_file import Job
from .progress import PROGRESS

STATE_FILE = "state.json"
CANCELLED_FILE = "cancelled"
"""File that ``make cancel`` creates (tools/jobs/slurm/jobs_on_cluster.sh): the job does not start again."""
SIGNALLED = 128
"""Number that is added to a signal's number in the status of a process that the signal has ended."""


@dataclass
class State:
    """Progress, crashes and faulty nodes of a job."""

    step: int = 0
    """Progress of the job (``progress``) at the start of the last attempt."""
    crashes: int = 0
    """Crashes since that progress."""
    requeues: int = 0
    """Requeues by the job itself since that progress."""
    first_error: str = ""
    """First error of these crashes."""
    kept: dict[str, str] = field(default_factory=dict)
    """Nodes that may be faulty, each with the node that is left out instead (``network_check.blame``)."""
    excluded: tuple[str, ...] = ()
    """Nodes that failed a check, caused two hangs, or were reported as unfit by the run."""
    suspects: tuple[str, ...] = ()
    """Nodes that caused a hang since that progress."""

    def progress_to(self, step: int) -> None:
        """Reset the counts if the run has advanced."""
        if step > self.step:
            self.step = step
            self.crashes = 0
            self.requeues = 0
            self.first_error = ""
            self.suspects = ()

    def clear(self, nodes: Sequence[str]) -> None:
        """Remove all doubts about these nodes, because they have passed all checks together."""
        self.kept = {node: other for node, other in self.kept.items() if node not in nodes}
        self.excluded = tuple(node for node in self.excluded if node not in nodes)

    def write(self, folder: Path) -> None:
        write_whole(folder / STATE_FILE, json.dumps(asdict(self), indent=2) + "\n")


def read_state(folder: Path) -> State:
    """Read the state of a job; a new job has an empty one."""
    try:
        values = json.loads((folder / STATE_FILE).read_text())
    except FileNotFoundError:
        return State()
    nodes = {name: tuple(values.get(name, ())) for name in ("excluded", "suspects")}
    return State(**{**values, **nodes})


def progress(job: Job) -> int:
    """Return the job's progress: step of the last whole checkpoint, or number of parts of its table."""
    return PROGRESS[STAGES[job.stage].progress](Path(job.run_dir), job.output)


def endings_folder(folder: Path, attempt: str) -> Path:
    """Return the folder with a record of each node at the end of an attempt."""
    return folder / "endings" / attempt


def stacks_folder(folder: Path, attempt: str) -> Path:
    """Return the folder with the stacks of all processes. It exists if the attempt hung."""
    return folder / "stacks" / attempt


def write_ending(folder: Path, node: str, **record: Any) -> None:
    """Write the record of a node in one step, because other nodes look for it meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{node}.json", json.dumps({"node": node, **record}) + "\n")


def endings(folder: Path, attempt: str) -> list[dict[str, Any]]:
    """Return the records of the nodes for an attempt."""
    return [
        json.loads(path.read_text())
        for path in sorted(endings_folder(folder, attempt).glob("*.json"))
    ]


def stopped(folder: Path, attempt: str) -> list[str]:
    """Return the messages of nodes that ended after a signal.

    Only nodes that have saved have a message. torchrun's status is the same after it killed its processes.
    """
    records = endings(folder, attempt)
    return [record["message"] for record in records if record.get("status") == STOPPED_BY_SIGNAL]


def hung_processes(folder: Path, attempt: str) -> list[Observed]:
    """Return the states of the processes of all nodes that answered; none unless the attempt hung."""
    return [
        Observed(**found) for record in endings(folder, attempt) for found in record.get("hung", [])
    ]


class Failure(NamedTuple):
    """First failure of an attempt."""

    status: int
    """Exit status of the process or, without a record, of the whole step."""
    text: str
    """Node, process and message."""


def first_failure(folder: Path, attempt: str, status: int, nodes: Sequence[str]) -> Failure:
    """Return the first failure on any node. Failures that it caused elsewhere come later.

    Args:
        folder: folder of the job.
        attempt: name of the attempt.
        status: exit status of the step.
        nodes: all nodes of the step.
    """
    records = endings(folder, attempt)
    silent = sorted(set(nodes) - {record["node"] for record in records})
    no_word = f"no word from torchrun of {', '.join(silent)}" if records and silent else ""
    failed = [record for record in records if record.get("status", 0) not in (0, STOPPED_BY_SIGNAL)]
    if not failed:
        return Failure(status, _lines(f"the step ended with {status}", no_word))
    first = min(failed, key=_order_of_failures)
    source = first["node"]
    if first["rank"] is not None:
        source = f"{first['node']}, process {first['rank']}"
    return Failure(
        first["status"], _lines(f"{source}: status {first['status']}", first["message"], no_word)
    )


def _order_of_failures(record: Mapping[str, Any]) -> tuple[bool, bool, bool, float]:
    """Return a key that sorts causes before their consequences.

    First come messages about mistakes of the user, then processes that a signal ended. Lost connections to
    other processes come last. Another node's clock may have recorded them earlier than their cause.
    """
    is_usage_error = record["status"] == USAGE_ERROR
    is_signal = record["rank"] is not None and record["status"] > SIGNALLED
    is_consequence = OTHER_ENDED in record["message"]
    return not is_usage_error, not is_signal, is_consequence, record["seconds"]


def _lines(*texts: str) -> str:
    """Join the texts that are not empty."""
    return "\n".join(filter(None, texts))
