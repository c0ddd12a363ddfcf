"""From a cluster file to the typed cluster, or to everything that is wrong in it."""

from __future__ import annotations

from pathlib import Path

from config.cluster import SlurmCluster
from config.yaml_document import read_document


def load_cluster(path: Path) -> SlurmCluster:
    """Read and check a cluster file.

    Raises:
        ValueError: whose text has one line for each thing that is wrong.
    """
    return SlurmCluster.model_validate(read_document(path))
