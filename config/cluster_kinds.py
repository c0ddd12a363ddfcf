"""Kinds of cluster files, by scheduler."""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from config.eks_cluster import EksCluster
from config.slurm_cluster import SlurmCluster

AnyCluster = Annotated[SlurmCluster | EksCluster, Field(discriminator="scheduler")]
"""Content of a cluster file."""
Kind = type[SlurmCluster] | type[EksCluster]

KINDS: Mapping[str, Kind] = {"slurm": SlurmCluster, "eks": EksCluster}


def kind_meant(document: dict[str, Any]) -> Kind:
    """Return the kind as which a file is checked, even if its scheduler is misspelled or missing.

    The scheduler, or the one that resembles it most, decides. Otherwise the kind that has most of the file's
    keys is used, because the other kind would report them as unknown.
    """
    for key in difflib.get_close_matches("scheduler", document, n=1):
        for scheduler in difflib.get_close_matches(str(document[key]).lower(), KINDS, n=1):
            return KINDS[scheduler]
    return max(KINDS.values(), key=lambda kind: len(document.keys() & kind.model_fields.keys()))
