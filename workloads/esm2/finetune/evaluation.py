"""Scores of a fine-tuned model on a split of its run's table, as at the end of the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from workloads.esm2.checkpoint import check_identity
from workloads.esm2.checkpoint_reader import saved_weights
from workloads.esm2.checksums import CHECKPOINT_FILE, verified
from workloads.esm2.config import RunConfig
from workloads.esm2.heartbeat import beat
from workloads.esm2.objective import Place
from workloads.esm2.precision import select_precision
from workloads.esm2.pretrained import assigned
from workloads.esm2.processes import Processes

from .objective import FineTuning


def score_task(config: RunConfig, here: Processes) -> dict[str, Any]:
    """Scores of the run's model, or of the folder or checkpoint that ``inference.model`` names.

    Every process calls it, and gets the same.

    Raises:
        ValueError: if there is no such model, if its outputs are not the task's, or if the checkpoint is of
            another run.
    """
    name = config.inference.model or str(config.run_dir / "model")
    beat("loading", slow=True)
    is_checkpoint = (Path(name) / CHECKPOINT_FILE).exists()
    objective, start = FineTuning(config) if is_checkpoint else _of_model(config, name), {}
    if is_checkpoint and not objective.trains_all:
        with verified(objective.start, here):  # checkpoints of adapters hold no other weights
            start = objective.weights()
    with verified(name, here) as source:
        if is_checkpoint:
            advice = "score a checkpoint with the run file and the settings of its run"
            check_identity(Path(name), objective.identity(here), advice)
            weights = start | saved_weights(Path(name))
        else:
            weights = objective.weights()
    dtype = select_precision(config.train, here.device, here).dtype
    empty = objective.on_meta()
    objective.quantize(empty, weights, dtype, here.device)
    model = assigned(empty, weights)
    objective.loaded(model, dtype)
    model.to(here.device).eval()
    split = objective.open(config.evaluate.split)
    found = objective.evaluate(model, split, Place(here, objective.pack_shape(split), dtype), 0)
    return {
        "model": name,
        "model_sha256": source.sha256,
        "data": config.data.path,
        "split": config.evaluate.split,
        "task": objective.schema.kind,
        "classes": list(objective.schema.output_names),
        **found.values,
        "proteins": found.num_proteins,
        "eval_runtime": found.seconds,
    }


def _of_model(config: RunConfig, name: str) -> FineTuning:
    """Objective of a run that starts from the model and keeps its head."""
    if Path(name) == config.run_dir / "model" and not Path(name).is_dir():
        raise ValueError(
            f"{name} does not exist: the run {config.name} has not finished, or merges no model "
            f"(lora.merge). Train it first, or name one of {config.run_dir}/checkpoints with "
            "inference.model=<folder>"
        )
    start = dataclasses.replace(config.model, init_from=name)
    objective = FineTuning(dataclasses.replace(config, model=start, lora=None))
    if not objective.has_head:
        raise ValueError(
            f"{name} has not been fine-tuned for this task, whose outputs are "
            f"{', '.join(objective.schema.output_names)}; give the model of a run with them (inference.model)"
        )
    return objective
