"""From a cluster file to the typed cluster, or to everything that is wrong in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from config.cluster import SlurmCluster
from config.field_errors import field_violations, without_wrong_values
from config.rules import violations
from config.violation import Violation
from config.yaml_document import read_document


def load_cluster(path: Path) -> SlurmCluster:
    """Read and check a cluster file.

    Raises:
        ValueError: whose text has one line for each thing that is wrong, as ``file: place: got what it has;
            what is allowed; what to do``.
    """
    document = read_document(path)
    _require_slurm(path, document)
    cluster, found = _checked(document)
    if cluster is None or found:
        raise ValueError("\n".join(f"{path}: {violation}" for violation in found))
    return cluster


def _require_slurm(path: Path, document: dict[str, Any]) -> None:
    """Tell a file for another scheduler from a wrong one: its keys would all be called unknown."""
    if document.get("scheduler") == "eks":
        raise ValueError(f"{path}: scheduler: got eks; only slurm is available yet; set slurm")


def _checked(document: dict[str, Any]) -> tuple[SlurmCluster | None, list[Violation]]:
    """The cluster as far as it can be made, and everything that is wrong.

    A wrong value is left out, so that its default stands in for it while the rules run; they stay silent on
    its place. Without a default there is no cluster, and no rules. The second round is for the values of
    mistyped keys, which the first one brings to light; the third for what is then without a default.
    """
    found: list[Violation] = []
    rest = document
    for _ in range(3):
        try:
            cluster = SlurmCluster.model_validate(rest)
        except ValidationError as error:
            found += _news(found, field_violations(error, document))
            rest = without_wrong_values(error, rest)
        else:
            return cluster, found + _news(found, violations(cluster))
    return None, found


def _news(found: list[Violation], more: list[Violation]) -> list[Violation]:
    """Those of ``more`` about places of which ``found`` says nothing, nor of anything inside them."""
    places = [violation.path for violation in found]
    return [
        violation
        for violation in more
        if not any(re.match(rf"{re.escape(violation.path)}([.[]|$)", place) for place in places)
    ]
