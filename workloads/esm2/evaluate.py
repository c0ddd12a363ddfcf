"""Score a model on a prepared split: ``python -m workloads.esm2.evaluate --config RUN.yaml [...]``.

The model is the run's own, or the one that ``inference.model`` names: a folder that transformers reads, a
checkpoint, or a hub id. For a pre-training ``model.init_from`` names one, too. ``evaluate.split`` picks the
split. Masks, crops and drawn cluster members are fixed, so scores of different models on it compare.

For a run with a task the scores are the task's. A run on questions has ROUGE beside the loss.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from workloads.training.checksums import verified
from workloads.training.command_line import run_command
from workloads.training.config import ModelConfig, RunConfig
from workloads.training.hardware import environment
from workloads.training.heartbeat import beat
from workloads.training.packing import PackShape
from workloads.training.precision import select_precision
from workloads.training.processes import Processes, processes
from workloads.training.records import ProteinSplit
from workloads.training.tracking.run_log import write_results

from .evaluation import pseudo_perplexity, score, unigram_perplexity
from .pretrained import starting_config, starting_weights, with_weights


def evaluate(config: RunConfig, here: Processes) -> dict[str, object]:
    """Scores of one masked language model on one split.

    Raises:
        ValueError: if there is no such model, or no such split in the prepared data.
    """
    model_config = _model_to_score(config)
    split = ProteinSplit(config.data.path, config.evaluate.split)
    with verified(str(model_config.init_from), here) as source:
        model = with_weights(starting_config(model_config), starting_weights(model_config, seed=0))
    model.to(here.device)  # type: ignore[arg-type]  # transformers wraps it
    dtype = select_precision(config.train, here.device, here).dtype
    result = score(
        model,
        split,
        shape=PackShape.of(split, config.train.tokens_per_pack, config.model.max_residues),
        mask_fraction=config.model.mask_fraction,
        dtype=dtype,
        here=here,
    )
    scores: dict[str, object] = {
        "model": model_config.init_from,
        "model_sha256": source.sha256,
        "data": config.data.path,
        "split": config.evaluate.split,
        "eval_loss": result.loss,
        "perplexity": result.perplexity,
        "eval_accuracy": result.accuracy,
        "predicted_residues": result.num_predicted,
        "proteins": result.num_proteins,
        "eval_runtime": result.seconds,
        "unigram_perplexity": unigram_perplexity(split),
    }
    if config.evaluate.pseudo_perplexity_proteins:
        scores["pseudo_perplexity"] = pseudo_perplexity(
            model,
            split,
            num_proteins=config.evaluate.pseudo_perplexity_proteins,
            tokens_per_pack=config.train.tokens_per_pack,
            max_residues=config.model.max_residues,
            dtype=dtype,
            device=here.device,
        )
    return scores


def _model_to_score(config: RunConfig) -> ModelConfig:
    trained = config.run_dir / "model"
    name = config.inference.model or config.model.init_from or str(trained)
    if Path(name) == trained and not trained.is_dir():
        raise ValueError(
            f"{trained} does not exist: the run {config.name} has not finished. Train it first, or name a "
            "model with model.init_from=<folder or hub id>"
        )
    return dataclasses.replace(config.model, init_from=name)


def main(config: RunConfig) -> None:
    beat("starting", slow=True)
    with processes() as here:
        if config.chat is not None:
            from workloads.causal_lm.objective import score_chat

            scores = score_chat(config, here)
        elif config.task is None:
            scores = evaluate(config, here)
        else:
            from workloads.esm2.finetune.objective import score_task

            scores = score_task(config, here)
        if not here.is_first:
            return
        for name, value in scores.items():
            print(f"{name:18} {value:.4f}" if isinstance(value, float) else f"{name:18} {value}")
        folder = Path(config.run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        # Another model's score does not replace the run's own.
        model = str(scores["model"])
        name = "" if Path(model) == folder / "model" else re.sub(r"[^\w.-]+", "-", model).strip("-.")
        file = f"evaluation-{config.evaluate.split}{'-' if name else ''}{name}.json"
        write_results(folder, {**scores, "environment": environment(here.device)}, file)
        print(f"{'written to':18} {folder / file}")


if __name__ == "__main__":
    run_command(main)
