"""Table of the model families, with the functions of each kind of run and of saved models.

Functions are imported when they are called: importing all takes seconds, and most stages need one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqlm.proteins.families.esm2 import facts as esm2_facts
from seqlm.proteins.families.esm2.facts import ModelShape
from seqlm.proteins.families.esmc import facts as esmc_facts

if TYPE_CHECKING:  # these bring torch and matplotlib
    from seqlm.proteins.model.architecture import Architecture
    from seqlm.training.data.manifest import Manifest
    from seqlm.training.objective import Objective
    from seqlm.training.processes import Processes
    from seqlm.training.report.run_report import ReportContents


def lazy(name: str) -> Callable[..., Any]:
    """Return a function that imports ``module:name``, below ``seqlm``, when it is called."""
    module, _, attribute = name.partition(":")
    return lambda *arguments: getattr(import_module(f"seqlm.{module}"), attribute)(*arguments)


@dataclass(frozen=True)
class RunKind:
    """Functions of one kind of run; their first argument is the run file."""

    objective: Callable[[Any], Objective]
    """ValueError for data or weights that do not fit the configuration."""
    prepare: Callable[[Any], Manifest]
    """Fetches and prepares the data; ``run_kinds.prepare`` first checks the place."""
    is_prepared: Callable[[Any], bool]
    """Whether the data that the run file describes are prepared; the sources may be gone."""
    paths_read: Callable[[Any], list[str]]
    """Files and folders that ``prepare`` reads, besides what it fetches or the code brings."""
    score: Callable[[Any, Processes], dict[str, Any]]
    """Scores of the run's model, or of ``inference.model``, on a split; every process calls it. ValueError if
    there is no such model, or no such split in the prepared data."""
    report: Callable[[], ReportContents]
    """Sections of the report."""
    check_start: Callable[[Any], None] = lambda config: None
    """ValueError for a model that a run cannot start from, before processes start."""
    records: str = "proteins"
    tokens: str = "residues"


@dataclass(frozen=True)
class ModelFamily:
    """Family of protein language models."""

    sizes: Mapping[str, ModelShape]
    """Values of ``model.size``, and their shapes."""
    shape_of: Callable[[Mapping[str, Any]], ModelShape]
    """Returns the shape of a model's config.json."""
    model_type: str
    """Name of the family in transformers, as in a model's config.json."""
    published_name: str
    """Regular expression of the published models' hub ids; its group is the size."""
    max_residues: int
    """Longest protein that the published models were trained on, in residues."""
    architecture: Callable[[], Architecture]
    """Returns the model classes."""


QUESTIONS = RunKind(
    objective=lazy("language.objective:CausalLM"),
    prepare=lazy("language.prepare:prepare_chat"),
    is_prepared=lazy("language.prepare:is_prepared"),
    paths_read=lazy("language.table:paths_read"),
    score=lazy("language.objective:score_chat"),
    report=lazy("language.report:AnswerContents"),
    records="conversations",
    tokens="tokens",
)
PROTEINS = RunKind(
    objective=lazy("proteins.pretraining.objective:Pretraining"),
    prepare=lazy("proteins.data.prepare:prepare_proteins"),
    is_prepared=lazy("proteins.data.prepare:is_prepared"),
    paths_read=lazy("proteins.data.prepare:paths_read"),
    score=lazy("proteins.pretraining.evaluation:score_model"),
    report=lazy("training.report.run_report:ReportContents"),
    check_start=lazy("proteins.model.pretrained:check_start"),
)
TASKS = RunKind(
    objective=lazy("proteins.finetune.objective:FineTuning"),
    prepare=lazy("proteins.finetune.prepare:prepare_table"),
    is_prepared=lazy("proteins.finetune.prepare:is_prepared"),
    paths_read=lazy("proteins.finetune.prepare:paths_read"),
    score=lazy("proteins.finetune.objective:score_task"),
    report=lazy("proteins.finetune.report:TaskContents"),
    check_start=lazy("proteins.model.pretrained:check_start"),
)
_SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads")
"""Keys of config.json that every family has."""
MODEL_FAMILIES: Mapping[str, ModelFamily] = {
    "esm2": ModelFamily(
        sizes={size: esm2_facts.model_shape(*row) for size, row in esm2_facts.SHAPES.items()},
        shape_of=lambda config: esm2_facts.model_shape(*(config[key] for key in _SHAPE)),
        model_type="esm",
        published_name=r"\besm2_t\d+_(\d+[MB])_UR50D",
        max_residues=1022,
        architecture=lazy("proteins.families.esm2.model:architecture"),
    ),
    "esmc": ModelFamily(
        sizes={size: esmc_facts.model_shape(*row) for size, row in esmc_facts.SHAPES.items()},
        shape_of=lambda config: esmc_facts.model_shape(
            *(config[key] for key in (*_SHAPE, "intermediate_size"))
        ),
        model_type="esmc",
        published_name=r"\bESMC-(\d+[MB])\b",
        max_residues=2046,
        architecture=lazy("proteins.families.esmc.model:architecture"),
    ),
}
"""Values of ``model.family``."""


def run_kind(*, task: object, chat: object) -> RunKind:
    """Return the kind of a run, from its sections."""
    return QUESTIONS if chat else TASKS if task else PROTEINS


def family_of(name: str) -> str | None:
    """Return the family of a model folder, a checkpoint folder or a published model's hub id, if it is known.

    A folder that does not exist yet may contain a hub id in its name.
    """
    model_type = saved_config(Path(name)).get("model_type")
    for family, each in MODEL_FAMILIES.items():
        if model_type == each.model_type or (not model_type and re.search(each.published_name, name)):
            return family
    return None


def saved_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a model or checkpoint folder; empty if there is none that can be read."""
    for file, key in (("config.json", None), ("checkpoint.json", "model_config")):
        try:
            document = json.loads((folder / file).read_text())
            return dict(document[key] if key else document)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # the loader reports damaged files
    return {}
