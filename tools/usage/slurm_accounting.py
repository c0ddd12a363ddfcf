"""Records of Slurm's accounting, read with ``sacct``."""

import secrets
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from seqlm.training.strict_yaml import shown
from tools.command_line import tell_lines
from tools.nodes.head_node import SLURM_PROGRAMS, HeadNode
from tools.usage.period import Period
from tools.usage.records import Accounting, JobRecord

SCRIPT = Path(__file__).with_name("slurm_accounting.sh")
FIELDS = (
    "JobIDRaw",
    "JobID",
    "User",
    "Account",
    "Partition",
    "State",
    "Start",
    "End",
    "NNodes",
    "AllocTRES",
    "NodeList",
    "JobName",
)
"""Fields of sacct. The last one, a text of the user's, may contain line breaks."""
NO_TIME = {"Unknown", "None", ""}
"""Times of a job that has not started or ended."""
TIME = "%Y-%m-%dT%H:%M:%S"
ROOT = "root"


def read_accounting(head: HeadNode, period: Period) -> Accounting:
    """Read the records that overlap a period, as root through a session or as the user of this machine.

    Raises:
        ValueError: if Slurm's accounting cannot be read.
    """
    # Nothing in the name of a job can look like this separator.
    mark = f"|{secrets.token_hex(8)}|"
    times = [f"{datetime.fromtimestamp(end, UTC):{TIME}}" for end in (period.since, period.until)]
    arguments = [*times, mark, ",".join(FIELDS), SLURM_PROGRAMS]
    lines: list[str] = []
    if head.is_here:
        command = ["bash", "-c", SCRIPT.read_text(), SCRIPT.name, *arguments]
        status = tell_lines(command, lines.append)
    else:
        status = head.run_as_root(SCRIPT.read_text(), arguments, lines.append)
    if status:
        said = [line for line in lines if mark not in line]
        raise ValueError(
            f"{head.name}: Slurm's accounting cannot be read: {' '.join(said) or f'status {status}'}. See "
            "`systemctl status slurmctld slurmdbd` on the controller"
        )
    return parse_accounting(lines, mark)


def parse_accounting(lines: Sequence[str], mark: str) -> Accounting:
    """Return what ``slurm_accounting.sh`` printed.

    Args:
        lines: lines of the output.
        mark: separator of the fields.
    """
    facts: dict[str, list[str]] = defaultdict(list)
    rows: list[list[str]] = []
    for line in lines:
        parts = line.split(mark)
        if parts[0] == "" and len(parts) > 1:
            facts[parts[1]].append(parts[2])
        elif len(parts) == len(FIELDS):
            rows.append(parts)
        elif rows:
            rows[-1][-1] += f" {line}"
    reader = facts["reader"][0]
    hides_jobs = any("jobs" in value for value in facts["private"])
    return Accounting(
        records=[_record(dict(zip(FIELDS, row, strict=True))) for row in rows],
        clock=int(facts["clock"][0]),
        tracked=frozenset(
            name.partition(":")[0]
            for value in facts["tracked"]
            for name in value.split(",")
            if name.startswith("gres/")
        ),
        present=frozenset(facts["queued"]),
        hidden_from=reader if hides_jobs and reader != ROOT else "",
    )


def _record(row: Mapping[str, str]) -> JobRecord:
    allocated = _resources(row["AllocTRES"])
    return JobRecord(
        number=row["JobIDRaw"],
        job=row["JobID"],
        name=row["JobName"],
        user=row["User"],
        account=row["Account"],
        partition=row["Partition"],
        # CANCELLED names the user who cancelled the job.
        state=row["State"].partition(" ")[0],
        start=_second(row["Start"]),
        end=_second(row["End"]),
        num_nodes=allocated.get("node", int(row["NNodes"] or 0)),
        num_cpus=allocated.get("cpu", 0),
        devices={name: number for name, number in allocated.items() if name.startswith("gres/")},
        nodes=row["NodeList"],
    )


def _resources(text: str) -> dict[str, int]:
    """Return the numbers of nodes, processors and devices of a list such as ``cpu=8,gres/gpu=4,mem=10G``.

    Devices that are listed by their type only, such as ``gres/gpu:h100=4``, are added up.
    """
    plain: dict[str, int] = {}
    typed: dict[str, int] = defaultdict(int)
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        if name in ("cpu", "node") or name.startswith("gres/"):
            kind, _, type_ = name.partition(":")
            if type_:
                typed[kind] += int(value)
            else:
                plain[kind] = int(value)
    return typed | plain


def _second(text: str) -> int | None:
    if text in NO_TIME:
        return None
    try:
        moment = datetime.strptime(text, TIME)
    except ValueError:
        raise ValueError(
            f"sacct: got the time {shown(text)}; expected a form such as 2026-11-01T08:30:00"
        ) from None
    return int(moment.replace(tzinfo=UTC).timestamp())
