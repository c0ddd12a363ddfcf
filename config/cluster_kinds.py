"""The kinds of cluster files, by scheduler."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from config.eks_cluster import EksCluster
from config.slurm_cluster import SlurmCluster

AnyCluster = Annotated[SlurmCluster | EksCluster, Field(discriminator="scheduler")]
"""What a cluster file describes."""
Kind = type[SlurmCluster] | type[EksCluster]

KINDS: Mapping[str, Kind] = {"slurm": SlurmCluster, "eks": EksCluster}


def kind_meant(document: dict[str, Any]) -> Kind:
    """The kind that a file is to be judged as, however its scheduler is written.

    That of its scheduler, or what is most like it; else the one that knows most of the file's keys, as the
    other would call them unknown.
    """
    for key in difflib.get_close_matches("scheduler", document, n=1):
        for scheduler in difflib.get_close_matches(str(document[key]).lower(), KINDS, n=1):
            return KINDS[scheduler]
    return max(KINDS.values(), key=lambda kind: len(document.keys() & kind.model_fields.keys()))
