"""Kind of a run, and checks, preparation and report that all kinds share."""

from pathlib import Path

from seqlm.runs.families import RunKind, run_kind
from seqlm.runs.run_file import RunFile
from seqlm.training.data.manifest import MANIFEST_FILE, Manifest
from seqlm.training.data.waiting import once
from seqlm.training.data.workspace import check_place
from seqlm.training.strict_yaml import read_mapping
from seqlm.training.tracking.run_log import CONFIG_FILE

FEW_STEPS = 10_000
MAX_BASES = 10
"""Longest chain of models, each trained from the one before, that is followed."""


def kind_of(config: RunFile) -> RunKind:
    """Return the kind of a run."""
    return run_kind(task=config.task, chat=config.chat)


def may_be_hub_id(name: str) -> bool:
    """Return whether a name has the form owner/name of a hub id, which a folder may have, too."""
    return bool(name) and name[0] not in "./~" and name.count("/") == 1


def check_model_name(field: str, name: str) -> None:
    """Raise ValueError if the field of the run file names a folder that is missing."""
    if not Path(name).is_dir() and not may_be_hub_id(name):
        raise ValueError(
            f"{field}: there is no folder {name} (looked in {Path.cwd()}); give the model folder of "
            "a run, such as runs/<name>/model, or a hub id, such as facebook/esm2_t6_8M_UR50D"
        )


def short_training(model: str | None) -> str | None:
    """Return a warning if a model was trained from random weights for few steps."""
    for _ in range(MAX_BASES):
        if model is None:
            return None
        run = read_mapping(Path(model).parent / CONFIG_FILE)
        steps, base = run.get("train", {}).get("max_steps"), run.get("model", {}).get("init_from")
        if steps and base is None and steps < FEW_STEPS:
            return (
                f"warning: {model} was trained from random weights for {steps:,} steps, so its results "
                "are poor; ESM-2 was trained for 500,000 (8M: facebook/esm2_t6_8M_UR50D)"
            )
        model = base
    return None


def prepare(config: RunFile) -> Manifest:
    """Fetch and prepare the run's data, or return at once if ``data.path`` holds the result.

    Raises:
        ValueError: if the data cannot be fetched or prepared, or the folder holds other data.
    """
    out = Path(config.data.path)
    if not (out / MANIFEST_FILE).exists():
        check_place(out)  # before a download of hours
    return kind_of(config).prepare(config)


def prepare_once(config: RunFile) -> None:
    """Return when the data are prepared, by this pod or by another one.

    Raises:
        ValueError: if the data cannot be fetched or prepared, or the folder holds other data.
    """
    once(
        lambda: kind_of(config).is_prepared(config),
        lambda: prepare(config),
        f"another pod prepares {config.data.path}",
    )


def report(run_dir: Path) -> Path:
    """Write the report of a run of any kind.

    Raises:
        ValueError: if the folder holds no record of a run, or a damaged one.
    """
    from seqlm.training.report.run_report import write_report  # imports matplotlib

    config = read_mapping(run_dir / CONFIG_FILE)
    return write_report(run_dir, run_kind(task=config.get("task"), chat=config.get("chat")).report())
