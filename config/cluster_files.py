"""Cluster files that commands use if none is given."""

from collections.abc import Mapping
from pathlib import Path

DEFAULT_CLUSTER_FILES: Mapping[str, Path] = {
    "slurm": Path("clusters/slurm.yaml"),
    "eks": Path("clusters/eks.yaml"),
}
"""Default of commands that serve one scheduler, by scheduler."""
DEFAULT_CLUSTER_FILE = DEFAULT_CLUSTER_FILES["slurm"]
"""Default of commands that serve both schedulers."""
