"""Functions of a run that depend on its family and on what it trains for, looked up in ``families.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.families import RunKind, function, run_kind
from workloads.run_file import RunFile
from workloads.training.data.manifest import MANIFEST_FILE, Manifest
from workloads.training.data.workspace import check_place
from workloads.training.strict_yaml import read_mapping
from workloads.training.tracking.run_log import CONFIG_FILE

FEW_STEPS = 10_000
MAX_BASES = 10
"""Models that each began from the one before; more are not followed."""

if TYPE_CHECKING:  # these bring torch and matplotlib
    from workloads.training.objective import Objective
    from workloads.training.processes import Processes
    from workloads.training.report.contents import ReportContents


def kind_of(config: RunFile) -> RunKind:
    """Return the kind of a run."""
    return run_kind(config.model.family, task=config.task, chat=config.chat)


def objective(config: RunFile) -> Objective:
    """Return the objective of the run.

    Raises:
        ValueError: for data or weights that do not fit the configuration.
    """
    made: Objective = function(kind_of(config).objective)(config)
    return made


def check_start(config: RunFile) -> None:
    """Raise ValueError for a model to start from that is known to be wrong before processes start."""
    if (name := kind_of(config).check_start) and config.model.init_from:
        function(name)(config)


def check_model_name(field: str, name: str) -> None:
    """Raise ValueError if the field of the run file names a folder that is missing."""
    # A hub id has the form owner/name, and so may a folder.
    if not Path(name).is_dir() and (name[0] in "./~" or name.count("/") != 1):
        raise ValueError(
            f"{field}: there is no folder {name} (looked in {Path.cwd()}); give the model folder of "
            "a run, such as runs/<name>/model, or a hub id, such as facebook/esm2_t6_8M_UR50D"
        )


def short_training(model: str | None) -> str | None:
    """Return a warning about the model of a run that began from random weights and took few steps."""
    for _ in range(MAX_BASES):
        if model is None:
            return None
        run = read_mapping(Path(model).parent / CONFIG_FILE)
        steps, base = run.get("train", {}).get("max_steps"), run.get("model", {}).get("init_from")
        if steps and base is None and steps < FEW_STEPS:
            return (
                f"warning: {model} was trained from random weights for {steps:,} steps, so it knows little "
                "of proteins; ESM-2 took 500,000 (8M: facebook/esm2_t6_8M_UR50D)"
            )
        model = base
    return None


def prepare(config: RunFile) -> Manifest:
    """Fetch and prepare the run's data, or return at once if ``data.path`` holds the result.

    Raises:
        ValueError: if they cannot be had, or other data are in their place.
    """
    out = Path(config.data.path)
    if not (out / MANIFEST_FILE).exists():
        check_place(out)  # before a download of hours
    manifest: Manifest = function(kind_of(config).prepare)(config)
    return manifest


def is_prepared(config: RunFile) -> bool:
    """Tell whether data are there that were made of what the run file names, in the way it says."""
    return bool(function(kind_of(config).is_prepared)(config))


def paths_read(config: RunFile) -> list[str]:
    """Files and folders that preparing a run's data reads, besides what it fetches or the code brings."""
    paths: list[str] = function(kind_of(config).paths_read)(config)
    return paths


def score(config: RunFile, here: Processes) -> dict[str, Any]:
    """Scores of the run's model, or of the one that ``inference.model`` names; every process calls it.

    Raises:
        ValueError: if there is no such model, or no such split in the prepared data.
    """
    scores: dict[str, Any] = function(kind_of(config).score)(config, here)
    return scores


def report_contents(config: Mapping[str, Any]) -> ReportContents:
    """Return the report sections of the run's family, for the run's ``config.yaml``."""
    family = (config.get("model") or {}).get("family", "esm2")  # runs of earlier versions have none
    kind = run_kind(family, task=config.get("task"), chat=config.get("chat"))
    contents: ReportContents = function(kind.report)()
    return contents
