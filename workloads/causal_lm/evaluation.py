"""Scores of a causal language model on a split of its run's conversations, as at the end of the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from workloads.esm2.checksums import verified
from workloads.esm2.config import RunConfig
from workloads.esm2.heartbeat import beat
from workloads.esm2.objective import Place
from workloads.esm2.precision import select_precision
from workloads.esm2.pretrained import assigned
from workloads.esm2.processes import Processes

from .model import shrink_frozen
from .model_files import model_folder
from .objective import CausalLM
from .written_answers import compare_models


def score_chat(config: RunConfig, here: Processes) -> dict[str, Any]:
    """Loss and ROUGE of the run's model, or of the folder that ``inference.model`` names.

    Every process calls it, and gets the same.

    Raises:
        ValueError: if there is no such model, or it is an adapter.
    """
    assert config.chat is not None
    folder = Path(config.inference.model or config.run_dir / "model")
    if not (folder / "config.json").exists() or not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{folder} holds no model: the run {config.name} has not finished, or merges none (lora.merge); "
            "name a folder that transformers reads with inference.model=<folder>"
        )
    beat("loading", slow=True)
    start = dataclasses.replace(config.model, init_from=str(folder))
    objective = CausalLM(dataclasses.replace(config, model=start, lora=None))
    dtype = select_precision(config.train, here.device, here).dtype
    with verified(folder, here) as source:
        model = assigned(objective.plain_on_meta(), objective.plain_weights())
    # In fp32, with the copies that autocast keeps of what could be trained, 14 billion take 90 GB.
    model.requires_grad_(False)
    shrink_frozen(model, dtype)
    model.make_buffers(here.device)
    model.to(here.device).eval()
    split = objective.open(config.evaluate.split)
    place = Place(here, objective.pack_shape(split), dtype)
    found = objective.evaluate(model, split, place, 0)
    del model
    rouge = {}
    if config.chat.questions:
        rouge = compare_models(
            config.chat,
            split,
            base=model_folder(config),
            tuned=folder,
            place=place,
            to=config.run_dir / f"answers-{config.evaluate.split}.json",
        )
    return {
        "model": str(folder),
        "model_sha256": source.sha256,
        "data": config.data.path,
        "split": config.evaluate.split,
        **found.values,
        **rouge,
        "conversations": found.num_proteins,
        "eval_runtime": found.seconds,
    }
