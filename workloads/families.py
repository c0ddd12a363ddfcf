"""Model families: the one table that maps kinds of runs, and saved models, to their packages.

Functions are named, not imported: importing them all takes seconds, and most stages need one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.esm2.shapes import SHAPES

if TYPE_CHECKING:  # this brings torch
    from workloads.training.processes import Processes


@dataclass(frozen=True)
class RunKind:
    """Functions of one kind of run, as ``module:name`` below ``workloads``."""

    objective: str
    """(run file) -> Objective."""
    prepare: str
    """(run file) -> Manifest; fetches and prepares the data."""
    is_prepared: str
    """(run file) -> bool, without the sources, which may be gone since."""
    paths_read: str
    """(run file) -> files and folders that ``prepare`` reads, besides what it fetches."""
    score: str
    """(run file, processes) -> scores of the model on a split."""
    report: str
    """() -> ReportContents."""
    check_start: str = ""
    """(run file) -> None; ValueError for a model that cannot be started from. Empty: training finds out."""
    records: str = "proteins"
    tokens: str = "residues"


@dataclass(frozen=True)
class ModelFamily:
    """A protein language model."""

    sizes: tuple[str, ...]
    """Values of ``model.size``."""
    model_type: str
    """transformers' name of the family, in a model's config.json."""
    load_model: str
    """(folder or hub id, processes or None) -> model for inference, on the CPU."""
    pretraining: RunKind
    fine_tuning: RunKind | None = None


_ESM2_PRETRAINING = RunKind(
    objective="esm2.pretraining:Pretraining",
    prepare="esm2.data.prepare:prepare_proteins",
    is_prepared="esm2.data.prepare:is_prepared",
    paths_read="esm2.data.prepare:paths_read",
    score="esm2.evaluation:score_model",
    report="training.report.contents:ReportContents",
    check_start="esm2.pretrained:check_start",
)
_ESM2_FINE_TUNING = RunKind(
    objective="esm2.finetune.objective:FineTuning",
    prepare="esm2.finetune.prepare:prepare_table",
    is_prepared="esm2.finetune.prepare:is_prepared",
    paths_read="esm2.finetune.prepare:paths_read",
    score="esm2.finetune.objective:score_task",
    report="esm2.finetune.report:TaskContents",
    check_start="esm2.pretrained:check_start",
)
QUESTIONS = RunKind(
    objective="causal_lm.objective:CausalLM",
    prepare="causal_lm.prepare:prepare_chat",
    is_prepared="causal_lm.prepare:is_prepared",
    paths_read="causal_lm.table:paths_read",
    score="causal_lm.objective:score_chat",
    report="causal_lm.report:AnswerContents",
    records="conversations",
    tokens="tokens",
)
MODEL_FAMILIES: Mapping[str, ModelFamily] = {
    "esm2": ModelFamily(
        sizes=tuple(SHAPES),
        model_type="esm",
        load_model="esm2.pretrained:load_model",
        pretraining=_ESM2_PRETRAINING,
        fine_tuning=_ESM2_FINE_TUNING,
    ),
}
"""Values of ``model.family``."""


INFERENCE: Mapping[str, str] = {
    "embed": "esm2.inference.embed:embed",
    "predict": "esm2.inference.predict:predict",
    "variants": "esm2.inference.variants:variants",
}
"""(run file, processes) -> None for each command of inference; they load models of every family."""


def run_kind(family: str, *, task: object, chat: object) -> RunKind:
    """Return the functions of a run, by its family and its sections.

    Raises:
        ValueError: for a task of a family without fine-tuning.
    """
    if chat:
        return QUESTIONS
    model = MODEL_FAMILIES[family]
    if not task:
        return model.pretraining
    if model.fine_tuning is None:
        raise ValueError(f"model.family: got {family}, which has no fine-tuning; leave task: out")
    return model.fine_tuning


def load_model(name: str, family: str, here: Processes | None = None) -> Any:
    """Load a model for inference, on the CPU in fp32.

    Args:
        name: model folder, checkpoint folder or hub id.
        family: family of a model whose folder does not name its own, as that of a hub id.
        here: this process, if all of a job's processes load the model.

    Raises:
        ValueError: if there is none, if its family is unknown, if it is damaged, or if weights are missing.
    """
    model_type = str(saved_config(Path(name)).get("model_type", ""))
    types = {each.model_type: each for each in MODEL_FAMILIES.values()}
    return function(types.get(model_type, MODEL_FAMILIES[family]).load_model)(name, here)


def saved_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a model or checkpoint folder; empty if there is none that can be read."""
    for file, key in (("config.json", None), ("checkpoint.json", "model_config")):
        try:
            document = json.loads((folder / file).read_text())
            return dict(document[key] if key else document)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # the loader reports damage
    return {}


def function(name: str) -> Callable[..., Any]:
    """Import a function by its name below ``workloads``, as ``module:name``."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(import_module(f"workloads.{module}"), attribute)
    return function
