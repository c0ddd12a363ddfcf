"""Rules as data, each with a value, its condition and its message, and helpers for paths in messages."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar, cast

from config.cluster import Cluster, InstanceGroup, NewVpc
from config.eks_cluster import EksCluster, EksInstanceGroup
from config.facts.regions import ZONE_ID_PREFIXES
from config.reading.violation import Violation
from config.section import Section
from config.slurm_cluster import SlurmCluster, SlurmInstanceGroup

Kind = TypeVar("Kind", bound=Cluster)
Group = TypeVar("Group", bound=InstanceGroup)


@dataclass(frozen=True)
class Rule(Generic[Kind]):
    """A rule about one value of a cluster file.

    ``allowed`` and ``fix`` may name fields of the cluster in braces, as ``{cluster.region}``, or be functions
    of the cluster.
    """

    path: str
    """Place of the value, for example ``storage.kms``."""
    is_wrong: Callable[[Kind], object]
    allowed: str | Callable[[Kind], str]
    fix: str | Callable[[Kind], str]
    got: str | Callable[[Kind], str] = ""
    """Description of the file's content, if there is no value at the path to show."""

    def __call__(self, cluster: Kind) -> Iterator[Violation]:
        if self.is_wrong(cluster):
            yield Violation(
                path=self.path,
                got=self._shown(cluster),
                allowed=_filled(self.allowed, cluster=cluster),
                fix=_filled(self.fix, cluster=cluster),
            )

    def _shown(self, cluster: Kind) -> object:
        """Return the description of the file's content, or the value at the path."""
        if callable(self.got):
            return self.got(cluster)
        if self.got:
            return self.got
        value = attrgetter(self.path)(cluster)
        if isinstance(value, Section):
            return value.model_dump()
        return None if value == [] else value


@dataclass(frozen=True)
class GroupRule(Generic[Kind, Group]):
    """A rule about one field of each instance group.

    ``allowed`` and ``fix`` may name fields of cluster and group in braces, as ``{group.num_instances}``, or
    be functions of both.
    """

    field: str
    is_wrong: Callable[[Kind, Group], object]
    allowed: str | Callable[[Kind, Group], str]
    fix: str | Callable[[Kind, Group], str]

    def __call__(self, cluster: Kind) -> Iterator[Violation]:
        for group in cast(Sequence[Group], cluster.instance_groups):
            if self.is_wrong(cluster, group):
                allowed = _filled(self.allowed, cluster=cluster, group=group)
                fix = _filled(self.fix, cluster=cluster, group=group)
                yield group_violation(group, self.field, allowed, fix)


def _filled(text: str | Callable[..., str], **parts: object) -> str:
    """Return the text with its fields in braces filled in, or what the function returns for the parts."""
    if isinstance(text, str):
        return text.format(**parts)
    return text(*parts.values())


CommonRule = Rule[Cluster]
CommonGroupRule = GroupRule[Cluster, InstanceGroup]
SlurmRule = Rule[SlurmCluster]
SlurmGroupRule = GroupRule[SlurmCluster, SlurmInstanceGroup]
EksRule = Rule[EksCluster]
EksGroupRule = GroupRule[EksCluster, EksInstanceGroup]


def group_path(group: InstanceGroup, field: str) -> str:
    """Return the path of a group's field, for example ``instance_groups[workers].ebs_gib``."""
    return f"instance_groups[{group.name}].{field}"


def group_violation(group: InstanceGroup, field: str, allowed: str, fix: str) -> Violation:
    """Return a violation for the value of one field of a group."""
    return Violation(group_path(group, field), getattr(group, field), allowed, fix)


def repetitions(
    path: str, values: Sequence[str], allowed: str, fix: str, *, key: str = ""
) -> Iterator[Violation]:
    """Yield a violation for each value of a list at ``path`` that repeats an earlier one.

    ``key`` is the value's field in the items, with its dot. It is empty if the items are the values.
    """
    for index, value in enumerate(values):
        if value in values[:index]:
            yield Violation(f"{path}[{index}]{key}", value, allowed, fix)


def has_closed_network(cluster: Cluster) -> bool:
    """Return whether the cluster's own VPC has no internet access."""
    return isinstance(cluster.network, NewVpc) and cluster.network.internet == "none"


def is_outside(cluster: Cluster, regions: frozenset[str]) -> bool:
    """Return whether HyperPod is available in the cluster's region, and the region is not in ``regions``."""
    return cluster.region in ZONE_ID_PREFIXES and cluster.region not in regions
