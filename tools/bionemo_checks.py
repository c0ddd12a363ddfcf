"""What is checked of a job of BioNeMo's before anything is asked of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from workloads.esm2.bionemo.command import batch_problems, unsupported
from workloads.esm2.bionemo.export_files import export_files
from workloads.esm2.config import RunConfig
from workloads.esm2.data.manifest import MANIFEST_FILE


def bionemo_problems(config: RunConfig, stage: str, sizes: Iterable[int], num_processes: int) -> list[str]:
    """What BioNeMo cannot do of a run, or not on these numbers of nodes with so many processes each."""
    if stage != "train-bionemo":
        return []
    return unsupported(config) + [
        problem for size in sizes for problem in batch_problems(config, size * num_processes)
    ]


def data_manifest(config: RunConfig, stage: str, folder: str) -> str:
    """The file below ``folder`` that is there once the data of a stage are; empty where it reads none."""
    if stage == "convert-bionemo":
        return ""
    if stage == "train-bionemo":
        return str(PurePosixPath(folder) / export_files(config.data.path).facts)
    return str(PurePosixPath(folder) / config.data.path / MANIFEST_FILE)
