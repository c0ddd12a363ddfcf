"""From a cluster file to the typed cluster, or to everything that is wrong in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from config.cluster import SlurmCluster
from config.field_errors import field_violations
from config.places import Location, below, item_label
from config.rules import violations
from config.section import Section
from config.stand_ins import StandIns, repaired, with_stand_ins
from config.violation import Violation
from config.yaml_document import read_document

Named = TypeVar("Named", bound=Section)


def load_cluster(path: Path) -> SlurmCluster:
    """Read and check a cluster file.

    Raises:
        ValueError: whose text has one line for each thing that is wrong, as ``file: place: got what it has;
            what is allowed; what to do``.
    """
    document = read_document(path)
    _require_slurm(path, document)
    cluster, found = _checked(document)
    if found:
        raise ValueError("\n".join(f"{path}: {violation}" for violation in found))
    return cluster


def _require_slurm(path: Path, document: dict[str, Any]) -> None:
    """Tell a file for another scheduler from a wrong one: its keys would all be called unknown."""
    if document.get("scheduler") == "eks":
        raise ValueError(f"{path}: scheduler: got eks; only slurm is available yet; set slurm")


def _checked(document: dict[str, Any]) -> tuple[SlurmCluster, list[Violation]]:
    """The cluster, and everything that is wrong with it; a wrong one has stand-ins and is not to be used.

    Each round brings to light what the one before put in its place: the values of mistyped keys, and the keys
    of a network without its kind. Stand-ins are right, so there is an end.
    """
    found: list[Violation] = []
    rest, stand_ins = document, StandIns()
    while True:
        try:
            SlurmCluster.model_validate(rest)
        except ValidationError as error:
            found += _news(found, field_violations(error, document))
            rest, more = repaired(error, rest)
            stand_ins |= more
        else:
            break
    num_clusters = max(map(len, stand_ins.values()), default=1)
    clusters = [
        _with_names(SlurmCluster.model_validate(with_stand_ins(rest, stand_ins, index)), document, stand_ins)
        for index in range(num_clusters)
    ]
    first, *others = [violations(cluster) for cluster in clusters]
    certain = [violation for violation in first if all(violation in other for other in others)]
    return clusters[0], found + _news(found, certain)


def _with_names(cluster: SlurmCluster, document: dict[str, Any], stand_ins: StandIns) -> SlurmCluster:
    """With the file's own names of groups and users, wrong as they are, since rules name places by them."""

    def named(items: list[Named], *place: str) -> list[Named]:
        made = list(items)
        for index, item in enumerate(made):
            here: Location = (*place, index)
            if here in stand_ins or (*here, "name") in stand_ins:
                made[index] = item.model_copy(update={"name": item_label(below(document, here), index)})
        return made

    access = cluster.access
    groups = named(access.groups, "access", "groups")
    users = named(access.users, "access", "users")
    accounts = named(access.accounts, "access", "accounts")
    return cluster.model_copy(
        update={
            "instance_groups": named(cluster.instance_groups, "instance_groups"),
            "access": access.model_copy(update={"groups": groups, "users": users, "accounts": accounts}),
        }
    )


def _news(found: list[Violation], more: list[Violation]) -> list[Violation]:
    """Those of ``more`` about places of which ``found`` says nothing, nor of what they are in."""
    places = [violation.path for violation in found]
    return [
        violation
        for violation in more
        if not any(re.match(rf"{re.escape(place)}([.[]|$)", violation.path) for place in places)
    ]
