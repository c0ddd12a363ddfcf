"""Table of the model families, and lookups of a model's family.

Without torch, because machines without it read the table.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqlm.training.data.small_file import MAX_CONFIG_BYTES, read_small

from .esm2.facts import ESM2
from .esmc.facts import ESMC
from .family import ModelFamily

MODEL_FAMILIES: Mapping[str, ModelFamily] = {family.name: family for family in (ESM2, ESMC)}
"""Families by the values of ``model.family``."""


def family_of(name: str) -> str | None:
    """Return the family of a model folder, a checkpoint folder or a published model's hub id.

    A folder that does not exist yet may contain a hub id in its name. None means that only loading
    the model would show the family.
    """
    model_type = saved_config(Path(name)).get("model_type")
    for family in MODEL_FAMILIES.values():
        if model_type == family.model_type:
            return family.name
        if not model_type and re.search(family.published_name, name):
            return family.name
    return None


def family_of_type(model_type: str) -> ModelFamily:
    """Return the family that transformers calls ``model_type``.

    Raises:
        ValueError: if no family has this type.
    """
    by_type = {family.model_type: family for family in MODEL_FAMILIES.values()}
    if model_type not in by_type:
        raise ValueError(f"a model of type {model_type!r}; allowed are {', '.join(by_type)}")
    return by_type[model_type]


def saved_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a model or checkpoint folder; empty if there is none that can be read."""
    for file, key in (("config.json", None), ("checkpoint.json", "model_config")):
        try:
            document = json.loads(read_small(folder / file, MAX_CONFIG_BYTES))
            return dict(document[key] if key else document)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # the loader reports damaged files
    return {}


def saved_architectures(folder: Path) -> list[str]:
    """Return the names of a saved model's classes; none if its configuration holds anything else there."""
    names = saved_config(folder).get("architectures")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    return []
