"""Differences between a start of a run and the start that wrote its checkpoint.

Fields of the run's identity cannot differ (``Objective.identity``). Those here may, and change the results.
"""

import json
from collections.abc import Mapping
from typing import Any

from seqlm.training.strict_yaml import shown

SHARES_FIELD = "packs_of_a_step"
"""Entry of the environment with the packs of a process on each kind of device, if they differ."""
EXPERIMENT_SECTIONS = ("optim", "lora", "task", "chat", "guard", "parallel")
"""Sections of the run file whose fields change what is trained."""
EXPERIMENT_FIELDS = (
    "train.precision",
    "train.max_steps",
    "train.compile",
    "train.kernels",
    "train.pack_shares",
)
"""Further fields of this kind, and those that change the last bits of the results."""
_NUMERICS = ("device", "precision", "torch", "torch_xla", "cuda", "threads", SHARES_FIELD)
"""Entries of the environment on which the last bits of a sum depend."""


def changes(
    saved: Mapping[str, Any],
    config: Mapping[str, Any],
    environment: Mapping[str, Any],
    world_size: int,
) -> list[str]:
    """Return what has changed since a checkpoint and makes the following losses differ.

    Args:
        saved: content of ``checkpoint.json``. Earlier versions lack some fields, which are not compared.
        config: configuration of this start, as plain data.
        environment: environment of this start.
        world_size: number of processes of this start.
    """
    before = _experiment(saved.get("config", {}))
    now = _experiment(json.loads(json.dumps(config)))
    found = [
        _change(name, before[name], value)
        for name, value in now.items()
        if name in before and before[name] != value
    ]
    if before.get("optim.schedule") == now.get("optim.schedule") == "constant":
        # The learning rate does not depend on the number of steps.
        found = [text for text in found if not text.startswith("train.max_steps:")]
    earlier = saved.get("environment", {})
    for name in _NUMERICS:
        if name in earlier and name in environment and earlier[name] != environment[name]:
            found.append(_change(name, earlier[name], environment[name]))
    if saved.get("world_size", world_size) != world_size:
        found.append(_change("processes", saved["world_size"], world_size))
    return found


def _experiment(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration that change what is trained, by their names."""
    fields: dict[str, Any] = {}
    for section, values in config.items():
        if not isinstance(values, Mapping):
            if section in EXPERIMENT_SECTIONS:
                fields[section] = values
            continue
        for name, value in values.items():
            full = f"{section}.{name}"
            if section in EXPERIMENT_SECTIONS or full in EXPERIMENT_FIELDS:
                fields[full] = value
    return fields


def _change(name: str, before: object, now: object) -> str:
    return f"{name}: {shown(before)}, now {shown(now)}"
