"""Bill of a period: hours and USD of each job, and what stayed idle. It is computed from records alone."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tools.usage.node_kinds import ClusterNodeKinds, NodeKind
from tools.usage.period import SECONDS_PER_HOUR, Period
from tools.usage.records import Accounting, JobRecord

RESIZING = "RESIZING"
"""State of an allocation that a resize ended."""
UNKNOWN = "not known"
"""Instance type of nodes that cannot be assigned to a group."""


@dataclass(frozen=True)
class Amount:
    node_hours: float = 0.0
    """Hours of whole nodes. A job with a part of a node has this part of its hours."""
    gpu_hours: float = 0.0
    usd: float = 0.0
    unpriced_node_hours: float = 0.0
    """Those of the node hours that have no price and are not in ``usd``."""

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(
            self.node_hours + other.node_hours,
            self.gpu_hours + other.gpu_hours,
            self.usd + other.usd,
            self.unpriced_node_hours + other.unpriced_node_hours,
        )

    def less(self, other: "Amount") -> "Amount":
        """Return what is left of the amount, at least zero, after another one is taken away."""
        return Amount(
            max(0.0, self.node_hours - other.node_hours),
            max(0.0, self.gpu_hours - other.gpu_hours),
            max(0.0, self.usd - other.usd),
            max(0.0, self.unpriced_node_hours - other.unpriced_node_hours),
        )


@dataclass(frozen=True)
class JobOnType:
    """Job on nodes of one instance type."""

    job: str
    name: str
    user: str
    account: str
    partition: str
    instance_type: str


@dataclass
class JobUse:
    """Use by a job in the period, over all its allocations."""

    job: JobOnType
    amount: Amount = Amount()
    states: list[str] = field(default_factory=list)
    """State of each allocation."""
    first_start: int = 0
    """Start of the first allocation, which may be before the period; in seconds since 1970."""
    last_end: int | None = None
    """End of the last allocation, which may be after the period; None if the job runs."""


@dataclass(frozen=True)
class Total:
    """Sum over jobs that share a user, a team or something else."""

    name: str
    num_jobs: int
    amount: Amount


@dataclass(frozen=True, kw_only=True)
class TeamBill:
    period: Period
    """Period of the bill, up to the time at which the records were read."""
    uses: Sequence[JobUse]
    """Jobs with a time in the period, by their first start."""
    capacity: Amount
    """Hours of the nodes of the cluster file, and their USD."""
    without_end: Sequence[str]
    """Jobs that have ended, but without a recorded time of their end. They are left out."""
    estimated: Sequence[str]
    """Instance types whose devices Slurm does not record. Their GPU hours follow from processors."""

    @property
    def used(self) -> Amount:
        return sum((use.amount for use in self.uses), Amount())

    @property
    def idle(self) -> Amount:
        return self.capacity.less(self.used)

    def totals(self, key: Callable[[JobOnType], str]) -> list[Total]:
        """Return the sums by a property of the jobs, the most expensive first."""
        amounts: dict[str, Amount] = defaultdict(Amount)
        jobs: dict[str, set[str]] = defaultdict(set)
        for use in self.uses:
            name = key(use.job)
            amounts[name] += use.amount
            jobs[name].add(use.job.job)
        found = [Total(name, len(jobs[name]), amount) for name, amount in amounts.items()]
        return sorted(
            found, key=lambda total: (-total.amount.usd, -total.amount.node_hours, total.name)
        )


def make_team_bill(accounting: Accounting, kinds: ClusterNodeKinds, period: Period) -> TeamBill:
    """Return the bill of a period.

    Each allocation counts from its start to its end, clipped to the period. An allocation of a running job
    counts up to the time at which the records were read.
    """
    period = Period(period.since, max(period.since, min(period.until, accounting.clock)))
    uses: dict[JobOnType, JobUse] = {}
    without_end = set()
    estimated = set()
    resized: dict[str, int] = {}
    for record in sorted(accounting.records, key=_order):
        if record.start is None or not record.num_nodes:
            continue
        if record.end is None and record.number not in accounting.present:
            without_end.add(record.job)
            continue
        end = accounting.clock if record.end is None else record.end
        # Slurm gives the allocation after a resize the start of the one before it.
        start = max(record.start, resized.get(record.number, 0))
        if record.state == RESIZING:
            resized[record.number] = end
        seconds = period.seconds_of(start, end)
        if not seconds:
            continue
        for kind, num_nodes in kinds.of_record(record).items():
            is_recorded = kind is None or kind.device in accounting.tracked
            if kind and kind.num_devices and not is_recorded:
                estimated.add(kind.instance_type)
            job = _job_on(record, kind)
            use = uses.setdefault(job, JobUse(job, first_start=record.start))
            use.amount += _amount(record, kind, num_nodes, seconds, is_recorded=is_recorded)
            use.states.append(record.state)
            use.last_end = record.end
    return TeamBill(
        period=period,
        uses=list(uses.values()),
        capacity=sum(_capacity(kinds, period.hours), Amount()),
        without_end=sorted(without_end),
        estimated=sorted(estimated),
    )


def _order(record: JobRecord) -> tuple[int, float]:
    """Return the place of a record: by its start, and then by its end."""
    return record.start or 0, math.inf if record.end is None else record.end


def _job_on(record: JobRecord, kind: NodeKind | None) -> JobOnType:
    return JobOnType(
        job=record.job,
        name=record.name,
        user=record.user,
        account=record.account,
        partition=record.partition,
        instance_type=kind.instance_type if kind else UNKNOWN,
    )


def _amount(
    record: JobRecord, kind: NodeKind | None, num_nodes: int, seconds: int, *, is_recorded: bool
) -> Amount:
    """Return the use by an allocation of its nodes of one kind, whose resources it has in equal parts."""
    hours = num_nodes * seconds / SECONDS_PER_HOUR
    if kind is None:
        # The share of such nodes is not known either.
        devices = sum(record.devices.values()) / record.num_nodes
        return Amount(hours, devices * hours, 0.0, hours)
    share = record.num_cpus / record.num_nodes / kind.num_cpus
    devices = record.devices.get(kind.device, 0) / record.num_nodes
    if is_recorded and kind.num_devices:
        share = max(share, devices / kind.num_devices)
    share = min(share, 1.0)
    if not is_recorded:
        devices = share * kind.num_devices
    return _priced(kind, share * hours, devices * hours)


def _priced(kind: NodeKind, node_hours: float, gpu_hours: float) -> Amount:
    if kind.price is None:
        return Amount(node_hours, gpu_hours, 0.0, node_hours)
    return Amount(node_hours, gpu_hours, node_hours * kind.price.usd)


def _capacity(kinds: ClusterNodeKinds, hours: float) -> Iterator[Amount]:
    """Yield the hours of the nodes of each group, and their USD."""
    for name, kind in kinds.of_groups.items():
        node_hours = kinds.num_nodes[name] * hours
        yield _priced(kind, node_hours, node_hours * kind.num_devices)
