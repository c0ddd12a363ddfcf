"""The cluster file as the tools read it."""

from __future__ import annotations

from pathlib import Path

import yaml

from config.cluster import SlurmCluster


def read_cluster(path: Path) -> SlurmCluster:
    """Load a cluster file.

    Raises:
        ValueError: if the file is missing or wrong.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file; name a cluster file with --cluster")
    return SlurmCluster.model_validate(yaml.safe_load(path.read_text()))
