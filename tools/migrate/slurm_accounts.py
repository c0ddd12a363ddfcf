"""Accounts, users and QOS of Slurm's accounting, as ``sacctmgr dump`` and ``sacctmgr show qos`` print them.

Only what the new cluster lacks is added. What it has with other values is listed, because its cluster file
may want it so.
"""

import base64
import gzip
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqlm.training.strict_yaml import shown
from tools.command_line import tell_lines
from tools.nodes.head_node import SLURM_PROGRAMS, HeadNode

READ = Path(__file__).with_name("slurm_read.sh")
WRITE = Path(__file__).with_name("slurm_write.sh")
LINE = re.compile(r"(Cluster|Parent|Account|User) - '([^']*)'(.*)")
"""Line of a dump. Slurm replaces an apostrophe in a value by another character."""
OPTION = re.compile(r":(\w+)=('[^']*'|[^:]*)")
ROOT = "root"
"""Account and user that every database has."""
QOS_FIELDS = (
    *("Name", "Description", "Priority", "GraceTime", "Flags", "UsageThres", "UsageFactor"),
    *("GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "GrpJobs", "GrpSubmit", "GrpWall"),
    *("MaxTRES", "MaxTRESPerNode", "MaxTRESMins", "MaxWall", "MaxTRESPU", "MaxJobsPU"),
    *("MaxSubmitPU", "MaxTRESPA", "MaxJobsPA", "MaxSubmitPA", "MinTRES", "Preempt", "PreemptMode"),
)
NEW_QOS: Mapping[str, str] = {
    "Priority": "0",
    "GraceTime": "00:00:00",
    "UsageFactor": "1.000000",
    "PreemptMode": "cluster",
}
"""Values of a new QOS, as sacctmgr shows them."""
MOST_CHARACTERS = 60_000
"""Most characters of what a session takes as arguments."""


@dataclass(frozen=True)
class Association:
    """Line of a dump: an account, or a user in an account."""

    kind: str
    """``Account`` or ``User``."""
    name: str
    parent: str
    """Account that contains it."""
    options: str
    """Options as the dump has them."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what identifies it: an account by its name, a user by name and account."""
        return self.kind, self.name, self.parent if self.kind == "User" else ""

    @property
    def label(self) -> str:
        place = f" in {self.parent}" if self.kind == "User" else ""
        return f"{self.kind.lower()} {self.name}{place}"

    def values(self) -> dict[str, str]:
        """Return the options and the parent. ``QOS`` is in one order, because Slurm lists it in any."""
        found = {name: value.strip("'") for name, value in OPTION.findall(self.options)}
        if "QOS" in found:
            found["QOS"] = ",".join(sorted(found["QOS"].split(",")))
        return {**found, "Parent": self.parent}


@dataclass(frozen=True)
class SlurmAccounts:
    cluster: str
    """Name of the cluster in Slurm."""
    associations: Sequence[Association]
    qos: Mapping[str, Mapping[str, str]]
    """Values that are set of each QOS, by name."""


@dataclass(frozen=True)
class AccountsLeft:
    """Comparison of a cluster's accounting with that of another one."""

    missing: Sequence[Association]
    """Accounts and users that the cluster lacks."""
    missing_qos: Sequence[str]
    different: Sequence[str]
    """Names with both values, as text."""

    @property
    def num_missing(self) -> int:
        return len(self.missing) + len(self.missing_qos)


def read_accounts(head: HeadNode) -> SlurmAccounts:
    """Read the accounting of a cluster, as root through a session, or on this machine.

    Raises:
        ValueError: if it cannot be read.
    """
    mark = f"|{secrets.token_hex(8)}|"
    lines: list[str] = []
    status = _run(head, READ, [mark, ",".join(QOS_FIELDS), SLURM_PROGRAMS], lines)
    if status:
        said = " ".join(line for line in lines if not line.startswith(mark))
        raise ValueError(
            f"{head.name}: Slurm's accounts cannot be read: {said or f'status {status}'}. See "
            "`systemctl status slurmdbd` on the controller"
        )
    return parse_accounts(lines, mark)


def parse_accounts(lines: Sequence[str], mark: str) -> SlurmAccounts:
    """Return what ``slurm_read.sh`` printed.

    Raises:
        ValueError: if a line of the dump is not in Slurm's form.
    """
    facts: dict[str, list[str]] = {"cluster": [], "dump": [], "qos": []}
    for line in lines:
        parts = line.split(mark, 2)
        if len(parts) == 3 and parts[0] == "":
            facts[parts[1]].append(parts[2])
    rows = [dict(zip(QOS_FIELDS, row.split("|"), strict=True)) for row in facts["qos"]]
    return SlurmAccounts(
        cluster=facts["cluster"][0],
        associations=list(_associations(facts["dump"])),
        qos={row.pop("Name"): _set_values(row) for row in rows},
    )


def _associations(lines: Sequence[str]) -> Iterator[Association]:
    parent = ROOT
    for line in lines:
        found = LINE.fullmatch(line.strip())
        if found is None:
            raise ValueError(
                f"sacctmgr dump: got {shown(line)}; expected a form such as User - 'ada':..."
            )
        kind, name, options = found.groups()
        if kind == "Parent":
            parent = name
        elif kind in ("Account", "User") and name != ROOT:
            yield Association(kind, name, parent, options)


def _set_values(row: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in row.items() if value and NEW_QOS.get(name) != value}


def compare_accounts(source: SlurmAccounts, target: SlurmAccounts) -> AccountsLeft:
    """Return what the target lacks, and what it has otherwise."""
    present = {found.key: found for found in target.associations}
    different = [
        f"{name}: {key} is {value} in the old cluster and {other.get(key) or 'not set'} in the new one"
        for name, values, other in _pairs(source, target, present)
        for key, value in values.items()
        if other.get(key) != value
    ]
    return AccountsLeft(
        missing=[found for found in source.associations if found.key not in present],
        missing_qos=[name for name in source.qos if name not in target.qos],
        different=different,
    )


def _pairs(
    source: SlurmAccounts,
    target: SlurmAccounts,
    present: Mapping[tuple[str, str, str], Association],
) -> Iterator[tuple[str, Mapping[str, str], Mapping[str, str]]]:
    """Yield name, values and the target's values of what both clusters have."""
    for found in source.associations:
        if found.key in present:
            yield found.label, found.values(), present[found.key].values()
    for name, values in source.qos.items():
        if name in target.qos:
            yield f"QOS {name}", values, target.qos[name]


def add_missing(head: HeadNode, source: SlurmAccounts, target: SlurmAccounts) -> str:
    """Add what the target lacks.

    Returns: a sentence on what was added.

    Raises:
        ValueError: if sacctmgr refuses.
    """
    left = compare_accounts(source, target)
    if not left.num_missing:
        return "nothing is missing"
    commands = "".join(f"{shlex.join(words)}\n" for words in qos_commands(source, left.missing_qos))
    packed = [_packed(commands), _packed(load_file(left.missing, target.cluster))]
    if sum(map(len, packed)) > MOST_CHARACTERS:
        raise ValueError(
            f"{left.num_missing} accounts, users and QOS are too many for a session; copy the file of "
            "`sacctmgr dump` yourself (docs/migrate.md)"
        )
    lines: list[str] = []
    status = _run(head, WRITE, [*packed, target.cluster, SLURM_PROGRAMS], lines)
    if status:
        raise ValueError(f"{head.name}: sacctmgr refuses: {' '.join(lines) or f'status {status}'}")
    return f"added {left.num_missing} accounts, users and QOS"


def qos_commands(source: SlurmAccounts, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words of sacctmgr that create QOS; those that a QOS preempts come first."""
    for name in names:
        yield ["add", "qos", f"name={name}"]
    for name in names:
        values = [f"{key}={_as_set(key, value)}" for key, value in source.qos[name].items()]
        if values:
            yield ["modify", "qos", "where", f"name={name}", "set", *values]


def _as_set(key: str, value: str) -> str:
    """Return a value as sacctmgr takes it: it shows a grace time as a clock, and takes seconds."""
    if key != "GraceTime":
        return value
    days, _, clock = value.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return str(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def load_file(missing: Sequence[Association], cluster: str) -> str:
    """Return the text for ``sacctmgr load``; empty if nothing is missing."""
    if not missing:
        return ""
    lines = [f"Cluster - '{cluster}'"]
    parent = None
    # A dump has each account before what it contains.
    for found in missing:
        if found.parent != parent:
            parent = found.parent
            lines.append(f"Parent - '{parent}'")
        lines.append(f"{found.kind} - '{found.name}'{found.options}")
    return "\n".join(lines) + "\n"


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _run(head: HeadNode, script: Path, arguments: Sequence[str], lines: list[str]) -> int:
    if head.is_here:
        return tell_lines(["bash", "-c", script.read_text(), script.name, *arguments], lines.append)
    return head.run_as_root(script.read_text(), arguments, lines.append)
