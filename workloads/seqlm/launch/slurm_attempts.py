"""State that a job keeps between its attempts, on this allocation or after a requeue."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from seqlm.runs.stages import STAGES
from seqlm.training.command_line import STOPPED_BY_SIGNAL, USAGE_ERROR
from seqlm.training.whole_file import write_whole

from .hang_report import Observed
from .job_file import Job
from .progress import PROGRESS

STATE_FILE = "state.json"
CANCELLED_FILE = "cancelled"
"""Made by ``make cancel`` (tools/jobs/slurm/jobs_on_cluster.sh): the job does not start again."""
SIGNALLED = 128
"""Added to the signal's number in the status of a process that one has ended."""


@dataclass
class State:
    step: int = 0
    """Progress of the job (``progress``) at the start of the last attempt."""
    crashes: int = 0
    """Since then."""
    requeues: int = 0
    """Requeues by the job itself since then."""
    first_error: str = ""
    """First error of these crashes."""
    kept: dict[str, str] = field(default_factory=dict)
    """Nodes that may be faulty, each with the node that is left out instead (``network_check.blame``)."""
    excluded: tuple[str, ...] = ()
    """Nodes that failed a check, or were to blame for two hangs."""
    suspects: tuple[str, ...] = ()
    """Nodes to blame for a hang since then."""

    def progress_to(self, step: int) -> None:
        """Start counting again where the run has come further."""
        if step > self.step:
            self.step, self.crashes, self.requeues, self.first_error, self.suspects = step, 0, 0, "", ()

    def clear(self, nodes: Sequence[str]) -> None:
        """They have passed all checks together: none of them is doubted or excluded any more."""
        self.kept = {node: other for node, other in self.kept.items() if node not in nodes}
        self.excluded = tuple(node for node in self.excluded if node not in nodes)

    def write(self, folder: Path) -> None:
        write_whole(folder / STATE_FILE, json.dumps(asdict(self), indent=2) + "\n")


def read_state(folder: Path) -> State:
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
    return folder / "endings" / attempt


def stacks_folder(folder: Path, attempt: str) -> Path:
    """There if the attempt hung."""
    return folder / "stacks" / attempt


def write_ending(folder: Path, node: str, **record: Any) -> None:
    """Keep what the processes of a node ended with; others look for it meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{node}.json", json.dumps({"node": node, **record}) + "\n")


def stopped(folder: Path, attempt: str) -> list[str]:
    """Return the messages of nodes that ended after a signal.

    Only nodes that have saved have a message. torchrun's status is the same after it killed its processes.
    """
    records = endings(folder, attempt)
    return [record["message"] for record in records if record.get("status") == STOPPED_BY_SIGNAL]


def hung_processes(folder: Path, attempt: str) -> list[Observed]:
    """Return the states of the processes of all nodes that answered; none unless the attempt hung."""
    return [Observed(**found) for record in endings(folder, attempt) for found in record.get("hung", [])]


def first_failure(folder: Path, attempt: str, status: int, nodes: Sequence[str]) -> tuple[int, str]:
    """Return the first failure on any node: its status, and a text with node, process and message.

    Processes that ended because of it come later.
    """
    found = endings(folder, attempt)
    silent = ", ".join(sorted(set(nodes) - {record["node"] for record in found}))
    unheard = f"no word from torchrun of {silent}" if found and silent else ""
    records = [record for record in found if record.get("status", 0) not in (0, STOPPED_BY_SIGNAL)]
    if not records:
        return status, _lines(f"the step ended with {status}", unheard)

    def order(record: Mapping[str, Any]) -> tuple[bool, bool, float]:
        """A message that a user can act on, then a process ended by a signal, count before what they bring
        about elsewhere: connections that break, which another node's clock may have seen earlier.
        """
        is_signal = record["rank"] is not None and record["status"] > SIGNALLED
        return record["status"] != USAGE_ERROR, not is_signal, record["seconds"]

    first = min(records, key=order)
    who = f"{first['node']}, process {first['rank']}" if first["rank"] is not None else first["node"]
    return first["status"], _lines(f"{who}: status {first['status']}", first["message"], unheard)


def _lines(*texts: str) -> str:
    return "\n".join(filter(None, texts))


def endings(folder: Path, attempt: str) -> list[dict[str, Any]]:
    """Return the records of the nodes for an attempt."""
    return [json.loads(path.read_text()) for path in sorted(endings_folder(folder, attempt).glob("*.json"))]
