"""Reading of a cluster file into the typed cluster, with a list of all mistakes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from config.cluster_files import DEFAULT_CLUSTER_FILES
from config.cluster_kinds import KINDS, AnyCluster, Kind, kind_meant
from config.eks_cluster import EksCluster
from config.reading.field_errors import field_violations
from config.reading.places import Location, below, in_file_order, is_within, item_label
from config.reading.stand_ins import StandIns, repaired, with_stand_ins
from config.reading.violation import Violation, mistakes_text
from config.reading.yaml_document import read_document
from config.rules import violations
from config.slurm_cluster import SlurmCluster

Wanted = TypeVar("Wanted", SlurmCluster, EksCluster)

_NAMED: tuple[tuple[str, ...], ...] = (
    ("instance_groups",),
    ("access", "groups"),
    ("access", "users"),
    ("access", "accounts"),
    ("task_governance", "teams"),
    ("task_governance", "priority_classes"),
)
"""Lists with items that error messages name."""


def load_cluster(path: Path) -> AnyCluster:
    """Read and check a cluster file.

    Raises:
        ValueError: listing every mistake in the file's order (``mistakes_text``).
    """
    document = read_document(path)
    cluster, found = _checked(document, kind_meant(document))
    if found:
        raise ValueError(mistakes_text(path, in_file_order(found, document)))
    return cluster


def _load_kind(path: Path, kind: type[Wanted]) -> Wanted:
    """Read and check a cluster file for a command that serves one scheduler.

    Raises:
        ValueError: if the file is invalid, or for another scheduler.
    """
    cluster = load_cluster(path)
    if isinstance(cluster, kind):
        return cluster
    wanted = next(scheduler for scheduler, other in KINDS.items() if other is kind)
    raise ValueError(
        f"{path}: scheduler: got {cluster.scheduler}; this command requires scheduler: {wanted};"
        f" set a cluster file for it, such as {DEFAULT_CLUSTER_FILES[wanted]}"
    )


load_slurm_cluster: Callable[[Path], SlurmCluster] = partial(_load_kind, kind=SlurmCluster)
load_eks_cluster: Callable[[Path], EksCluster] = partial(_load_kind, kind=EksCluster)


def _checked(document: dict[str, Any], kind: Kind) -> tuple[AnyCluster, list[Violation]]:
    """Return the cluster and its violations; with violations it contains stand-ins and is unusable.

    Each round finds mistakes that the previous round uncovered: the values of mistyped keys, and the keys of
    a network without its kind. Stand-ins are valid, so the loop ends.
    """
    found: list[Violation] = []
    rest = document
    stand_ins = StandIns()
    while True:
        try:
            kind.model_validate(rest)
        except ValidationError as error:
            found += _news(found, field_violations(error, document, kind))
            rest, more = repaired(error, rest, kind)
            stand_ins |= more
        else:
            break
    num_clusters = max(map(len, stand_ins.values()), default=1)
    clusters = [
        kind.model_validate(with_stand_ins(rest, stand_ins, index)) for index in range(num_clusters)
    ]
    for cluster in clusters:
        _set_names(cluster, document, stand_ins)
    # A violation that some stand-ins do not cause is due to the others.
    first, *others = [violations(cluster) for cluster in clusters]
    certain = [violation for violation in first if all(violation in other for other in others)]
    return clusters[0], found + _news(found, certain)


def _set_names(cluster: AnyCluster, document: dict[str, Any], stand_ins: StandIns) -> None:
    """Give items the names from the file, even if these are invalid, because rules use them in paths."""
    for place in _NAMED:
        items: Any = cluster
        for part in place:
            items = getattr(items, part, None)
        for index, item in enumerate(items or ()):
            here: Location = (*place, index)
            if here in stand_ins or (*here, "name") in stand_ins:
                name = item_label(below(document, here), index)
                items[index] = item.model_copy(update={"name": name})


def _news(found: list[Violation], more: list[Violation]) -> list[Violation]:
    """Return the violations in ``more`` at places that are not within a place that ``found`` reports."""
    reported = [violation.path for violation in found]
    return [
        violation
        for violation in more
        if not any(is_within(violation.path, place) for place in reported)
    ]
