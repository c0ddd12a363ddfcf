"""Names of models in run files: folders, checkpoints and hub ids."""

from pathlib import Path

from seqlm.training.strict_yaml import read_mapping
from seqlm.training.tracking.run_log import CONFIG_FILE

FEW_STEPS = 10_000
"""Steps from random weights below which results are poor."""
MAX_BASES = 10
"""Longest chain of models, each trained from the one before, that is followed."""


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
        steps = run.get("train", {}).get("max_steps")
        base = run.get("model", {}).get("init_from")
        if steps and base is None and steps < FEW_STEPS:
            return (
                f"warning: {model} was trained from random weights for {steps:,} steps, so its results "
                "are poor; ESM-2 was trained for 500,000 (8M: facebook/esm2_t6_8M_UR50D)"
            )
        model = base
    return None
