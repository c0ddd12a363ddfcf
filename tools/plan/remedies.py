"""What to change in a run that does not fit."""

from __future__ import annotations

import dataclasses

from tools.plan.memory import Layout, memory
from workloads.run_file import RunFile


def remedies(layout: Layout, usable_bytes: float) -> list[str]:
    """Changes as ARGS of make with which the run fits, the least of each kind; empty if none does."""
    found: list[dict[str, str]] = []
    for setting in _settings(layout):
        if any(changes.items() <= setting.items() for changes in found):
            continue  # less is enough
        for tokens in (None, *_smaller_packs(layout.config)):
            changes = setting if tokens is None else {**setting, "train.tokens_per_pack": str(tokens)}
            config = _changed(layout.config, changes)
            if memory(dataclasses.replace(layout, config=config)).total <= usable_bytes:
                found.append(changes)
                break
    return [" ".join(f"{key}={value}" for key, value in changes.items()) for changes in found]


def layout_without_recomputing(layout: Layout) -> Layout:
    train = dataclasses.replace(layout.config.train, activation_checkpointing=False)
    return dataclasses.replace(layout, config=dataclasses.replace(layout.config, train=train))


def _settings(layout: Layout) -> list[dict[str, str]]:
    """What can be switched on beside smaller packs, nothing first."""
    config = layout.config
    recomputing = {"train.activation_checkpointing": "true"}
    sharded = {"parallel.mode": "fsdp"}
    settings: list[dict[str, str]] = [{}]
    if not config.train.activation_checkpointing:
        settings.append(recomputing)
    # Adapters leave little to shard, and NeuronCores have copies alone.
    can_shard = layout.world_size > 1 and config.lora is None and layout.attention != "window"
    if config.parallel.mode == "ddp" and can_shard:
        settings += [{**setting, **sharded} for setting in settings]
    return settings


def _smaller_packs(config: RunFile) -> list[int]:
    """Halves, quarters, ... that still hold the longest protein; steps stay as large as they are."""
    least, sizes = config.model.max_residues + 2, []
    tokens = config.train.tokens_per_pack
    while tokens % 2 == 0 and tokens // 2 >= least:
        tokens //= 2
        sizes.append(tokens)
    return sizes


def _changed(config: RunFile, changes: dict[str, str]) -> RunFile:
    train, parallel = config.train, config.parallel
    if "train.tokens_per_pack" in changes:
        train = dataclasses.replace(train, tokens_per_pack=int(changes["train.tokens_per_pack"]))
    if "train.activation_checkpointing" in changes:
        train = dataclasses.replace(train, activation_checkpointing=True)
    if "parallel.mode" in changes:
        parallel = dataclasses.replace(parallel, mode="fsdp")
    return dataclasses.replace(config, train=train, parallel=parallel)
